"""Torch models and their calls as msprobe sees them, before a model is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules import module as module_file

from vario.backends.protocols.events import Undo
from vario.backends.protocols.msprobe_wishes import NamedPart, ProcessPlace
from vario.backends.torch import naming, process
from vario.backends.torch.engines import optimizers
from vario.backends.torch.loop import hooks, module_hooks
from vario.core.errors import ModelError


class TorchSide:
    """Modules of torch."""

    def place(self, process_group: Any) -> ProcessPlace:
        """Return the position of this process; without a process group, in the group of all."""
        rank, world_size = process.rank_and_world_size()
        if not dist.is_available() or not dist.is_initialized():
            return ProcessPlace(rank, world_size, 0, (rank,))
        group = process_group if isinstance(process_group, dist.ProcessGroup) else dist.group.WORLD
        assert group is not None
        mates = tuple(dist.get_process_group_ranks(group))
        return ProcessPlace(rank, world_size, dist.get_group_rank(group, rank), mates)

    def check(self, chunks: Sequence[Any], optimizer: Any) -> None:
        """Raise ModelError for anything that is not a module or an optimizer."""
        for chunk in chunks:
            if not isinstance(chunk, torch.nn.Module):
                kind = type(chunk).__name__
                raise ModelError(f"set_monitor: model: expected a torch.nn.Module, or a list of them, got {kind}")
        try:
            optimizers.innermost(optimizer)
        except ModelError:
            kind = type(optimizer).__name__
            raise ModelError(f"set_monitor: optimizer: expected a torch.optim.Optimizer, got {kind}") from None

    def modules(self, chunks: Sequence[Any]) -> Iterator[NamedPart]:
        """Yield the modules of these models."""
        names = {id(module): name for name, module in naming.all_modules(_keyed(chunks)).items()}
        for stage, chunk in enumerate(chunks):
            full = {id(module): name for name, module in chunk.named_modules()}
            for local, module in naming.unwrap(chunk).named_modules():
                if id(module) in names:
                    yield NamedPart(stage, names[id(module)], full[id(module)], naming.clean(local), module)

    def parameters(self, chunks: Sequence[Any]) -> Iterator[NamedPart]:
        """Yield their parameters."""
        names = {id(parameter): name for name, parameter in naming.all_parameters(_keyed(chunks)).items()}
        for stage, chunk in enumerate(chunks):
            full = {id(parameter): name for name, parameter in chunk.named_parameters()}
            for local, parameter in naming.unwrap(chunk).named_parameters():
                yield NamedPart(stage, names[id(parameter)], full[id(parameter)], naming.clean(local), parameter)

    def rank_and_first(self, group: Any) -> tuple[int, int]:
        """Return the rank of this process in a group, and the global rank of the group's first process."""
        return dist.get_rank(group=group), dist.get_global_rank(group, 0)

    def after_each_call(self, modules: Mapping[str, Any], note: Callable[..., None], in_any_mode: bool = False) -> Undo:
        """Run `note(name, args, kwargs, output)` after calls of these modules, outside compiled graphs."""
        undos = hooks.Undos()
        for name, module in modules.items():

            def after(module: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                is_of_interest = in_any_mode or module.training
                if is_of_interest and hooks.current_backward() == -1:
                    note(name, args, kwargs, output)

            undos.add(module_hooks.after_forward(module, after))
        return undos

    def after_each_backward(self, modules: Mapping[str, Any], note: Callable[..., None]) -> Undo:
        """Run `note(name, of inputs, of outputs)` after each call: autograd gives each the shape of its tensor."""

        def called(name: str, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
            outputs = output if isinstance(output, (tuple, list)) else (output,)
            note(name, *(tuple(value if _has_gradient(value) else None for value in side) for side in (args, outputs)))

        return self.after_each_call(modules, called)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""
        return isinstance(value, torch.Tensor)

    def number(self, value: float) -> torch.Tensor:
        """Return a tensor without dimensions."""
        return torch.tensor(value, dtype=torch.float64)

    def is_between_calls(self, filename: str) -> bool:
        """Whether this file has the code that calls modules."""
        return filename == module_file.__file__


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _keyed(chunks: Sequence[Any]) -> dict[str, Any]:
    """Return the chunks of a virtual pipeline as vario is given them: each by its number, a plain model without."""
    return {f"{stage}." if len(chunks) > 1 else "": chunk for stage, chunk in enumerate(chunks)}
