"""MindSpore cells and their calls as msprobe sees them, before a cell is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mindspore
from mindspore import Tensor, nn
from mindspore.communication import GlobalComm
from mindspore.graph._utils import check_jit_forbidden_api
from mindspore.mint import distributed
from mindspore.nn import cell as cell_file

from vario.backends.mindspore import taps
from vario.backends.mindspore.cells import has_construct
from vario.backends.mindspore.process import rank_and_world_size
from vario.backends.mindspore.targets import as_roots
from vario.backends.protocols.events import Undo
from vario.backends.protocols.msprobe_wishes import NamedPart, ProcessPlace
from vario.core.errors import ModelError
from vario.core.records import ROOT

_BETWEEN = frozenset({cell_file.__file__, check_jit_forbidden_api.__file__})


class MindSporeSide:
    """Cells of MindSpore, in PyNative mode."""

    def place(self, process_group: Any) -> ProcessPlace:
        """Return the position of this process; groups are known by their names."""
        rank, world_size = rank_and_world_size()
        if not GlobalComm.INITED:
            return ProcessPlace(rank, world_size, 0, (rank,))
        if not isinstance(process_group, str):
            return ProcessPlace(rank, world_size, rank, tuple(range(world_size)))
        mates = tuple(distributed.get_process_group_ranks(process_group))
        return ProcessPlace(rank, world_size, distributed.get_group_rank(process_group, rank), mates)

    def check(self, chunks: Sequence[Any], optimizer: Any) -> None:
        """Raise ModelError for anything that is not a cell or an optimizer, and in graph mode."""
        for chunk, root in zip(chunks, _roots(chunks).values(), strict=True):
            if not isinstance(root, nn.Cell):
                kind = type(chunk).__name__
                raise ModelError(f"set_monitor: model: expected a mindspore.nn.Cell, or a list of them, got {kind}")
        if not hasattr(optimizer, "parameters"):
            kind = type(optimizer).__name__
            raise ModelError(f"set_monitor: optimizer: expected a MindSpore optimizer, got {kind}")
        if taps.is_graph_mode():
            raise ModelError(
                "set_monitor: TrainerMon watches MindSpore in PyNative mode only, as msprobe does. Switch to it with "
                "mindspore.set_context(mode=mindspore.PYNATIVE_MODE), or use vario.watch, which watches graph mode too."
            )

    def modules(self, chunks: Sequence[Any]) -> Iterator[NamedPart]:
        """Yield the cells of these models."""
        for stage, (prefix, root) in enumerate(_roots(chunks).items()):
            full = {id(cell): name for name, cell in _given(chunks[stage], root).cells_and_names()}
            for name, cell in root.cells_and_names():
                yield NamedPart(stage, prefix + (name or ROOT), full[id(cell)], name, cell)

    def parameters(self, chunks: Sequence[Any]) -> Iterator[NamedPart]:
        """Yield their parameters."""
        for stage, (prefix, root) in enumerate(_roots(chunks).items()):
            full = {id(one): name for name, one in _given(chunks[stage], root).parameters_and_names()}
            for name, parameter in root.parameters_and_names():
                yield NamedPart(stage, prefix + name, full[id(parameter)], name, parameter)

    def rank_and_first(self, group: Any) -> tuple[int, int]:
        """Return the rank of this process in a group, and the global rank of the group's first process."""
        return distributed.get_rank(group=group), distributed.get_global_rank(group, 0)

    def after_each_call(self, modules: Mapping[str, Any], note: Callable[..., None], in_any_mode: bool = False) -> Undo:
        """Run `note(name, args, kwargs, output)` after calls of these cells in training passes."""
        handles = []
        for name, cell in modules.items():

            def after(cell: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                is_of_interest = in_any_mode or cell.training
                if is_of_interest and taps.is_recording() and not taps.is_in_backward():
                    note(name, args, kwargs, output)

            if has_construct(cell):
                handles.append(cell.register_forward_hook(after, with_kwargs=True))
        return _undo(handles)

    def after_each_backward(self, modules: Mapping[str, Any], note: Callable[..., None]) -> Undo:
        """Run `note(name, of inputs, of outputs)` after backward has passed one of these cells."""
        handles = []
        for name, cell in modules.items():

            def after(cell: Any, of_inputs: Any, of_outputs: Any, name: str = name) -> None:
                note(name, *(side if isinstance(side, tuple) else (side,) for side in (of_inputs, of_outputs)))

            if has_construct(cell):
                handles.append(cell.register_backward_hook(after))
        return _undo(handles)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""
        return isinstance(value, Tensor)

    def number(self, value: float) -> Any:
        """Return a tensor without dimensions."""
        return Tensor(value, mindspore.float64)

    def is_between_calls(self, filename: str) -> bool:
        """Whether this file has the code that calls cells and their hooks."""
        return filename in _BETWEEN


def _roots(chunks: Sequence[Any]) -> dict[str, Any]:
    return as_roots(chunks[0] if len(chunks) == 1 else chunks)


def _given(chunk: Any, root: Any) -> Any:
    """Return what names are counted from: a `mindspore.train.Model` is no cell itself."""
    return chunk if isinstance(chunk, nn.Cell) else root


def _undo(handles: list[Any]) -> Undo:
    def undo() -> None:
        while handles:
            handles.pop().remove()

    return undo
