"""Which tensors go into and come out of each module, from one forward pass on tensors without memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vario.backends.nested_tensors import inputs, leaves
from vario.backends.torch.memory_simulation.batches import positional
from vario.backends.torch.memory_simulation.fakes import fake_batch, fake_model
from vario.backends.torch.memory_simulation.tape import Tape


def module_tensors(model: torch.nn.Module, batch: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return the names and bytes of all inputs and outputs of modules, and of those that have gradients."""
    values: dict[str, int] = {}
    gradients: dict[str, int] = {}

    def see(module: str, found: Iterable[tuple[str, torch.Tensor]]) -> None:
        for path, tensor in found:
            name, num_bytes = f"{module}:{path}", tensor.numel() * tensor.element_size()
            values[name] = num_bytes
            if tensor.requires_grad:
                gradients[name] = num_bytes

    def watch(name: str, module: torch.nn.Module) -> None:
        def called(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            see(name, inputs(torch.Tensor, args, kwargs))
            see(name, leaves(torch.Tensor, output, "output"))

        module.register_forward_hook(called, with_kwargs=True)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copy = fake_model(model, mode)
    copy.train()
    for name, module in copy.named_modules():
        watch(name, module)
    fake = fake_batch(positional(batch), mode)
    with torch.device("cpu"), mode, Tape(None, False):
        copy(**fake) if isinstance(fake, Mapping) else copy(*fake)
    return values, gradients
