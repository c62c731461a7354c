"""Training steps on fake tensors, as a GPU would run them: forward, backward, clipping and the real optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves

from vario.backends.gpus import Gpu
from vario.backends.memory_trace import MemoryTrace
from vario.backends.torch.simulation.cuda_operators import cuda_paths
from vario.backends.torch.simulation.fakes import fake_batch, fake_model, unwatched
from vario.backends.torch.simulation.tape import Tape, ValueReadError
from vario.backends.torch.simulation.transformers_paths import real_paths
from vario.errors import ConfigError, ModelError

WEIGHT_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIXED_TYPES = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


@dataclass(frozen=True)
class StepPlan:
    """One way to train a model."""

    make_optimizer: Callable[[list[torch.nn.Parameter]], Any]
    loss_of: Callable[[Any, Any], torch.Tensor]
    precision: str | None = None
    accumulation: int = 1
    checkpoints: bool = False
    """Whether layers forget their activations and compute them again."""
    clips: bool = True
    keeps_outputs: bool = False
    is_padded: bool = False
    num_steps: int = 3
    """The optimizer's state appears in the first, and the allocator settles in the second."""


def simulate(model: torch.nn.Module, batch: Any, plan: StepPlan, gpu: Gpu | None) -> MemoryTrace:
    """What some training steps allocate and free on that GPU, or on the CPU, without the memory.

    A model whose shapes depend on values cannot be simulated: ModelError.
    """
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    numbers = torch.get_rng_state()
    try:
        return _simulate(model, batch, plan, gpu)
    except (ValueReadError, DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ModelError(
            f"{type(model).__name__} cannot be simulated: what it does depends on values, and there are only shapes "
            f"({error})."
        ) from error
    finally:
        torch.set_rng_state(numbers)


def _simulate(model: torch.nn.Module, batch: Any, plan: StepPlan, gpu: Gpu | None) -> MemoryTrace:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    weights_type = WEIGHT_TYPES.get(plan.precision or "")
    if plan.precision in MIXED_TYPES:
        weights_type = torch.float32
    with nullcontext() if gpu is None else cuda_paths(gpu), real_paths(), unwatched():
        copied = fake_model(model, mode, weights_type)
        copied.train()
        if plan.checkpoints:
            _enable_checkpointing(copied)
        tape = Tape(gpu, plan.is_padded)
        tape.trace.begin("model")
        tape.hold_weights(copied)
        inputs = fake_batch(batch, mode)
        tape.hold((one for one in tree_leaves(inputs) if isinstance(one, torch.Tensor)), "inputs")
        trained = [parameter for parameter in copied.parameters() if parameter.requires_grad]
        tape.follow_modules(copied)
        with mode, tape:
            optimizer = plan.make_optimizer(trained)
            for _ in range(plan.num_steps):
                _step(copied, inputs, optimizer, trained, plan, tape)
    return tape.trace


def _enable_checkpointing(model: torch.nn.Module) -> None:
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise ConfigError(
            f"checkpointing: {type(model).__name__} has no gradient_checkpointing_enable(). Build it with its layers "
            "under torch.utils.checkpoint, and leave this option out."
        )
    enable()


def _step(
    model: torch.nn.Module, batch: Any, optimizer: Any, trained: list[torch.nn.Parameter], plan: StepPlan, tape: Tape
) -> None:
    half = MIXED_TYPES.get(plan.precision or "")
    outputs = None
    for _ in range(plan.accumulation):
        tape.trace.begin("forward")
        first = len(tape.trace.blocks)
        with torch.autocast("cpu", dtype=half, enabled=half is not None):
            outputs = model(**batch) if isinstance(batch, Mapping) else model(*batch)
            loss = plan.loss_of(outputs, batch)
        if not plan.keeps_outputs:
            outputs = None
        tape.mark_alive(first, "activations")
        tape.trace.begin("backward")
        (loss / plan.accumulation).backward()
        tape.mark((parameter.grad for parameter in trained), "gradients")
        del loss
    tape.trace.begin("optimizer")
    if plan.clips:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    tape.mark(
        (one for one in tree_leaves(list(optimizer.state.values())) if isinstance(one, torch.Tensor)), "optimizer"
    )
    optimizer.zero_grad(set_to_none=True)
