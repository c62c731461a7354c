"""Describe a call of a collective operator: its tensors by role, its group, and its call site."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import distributed as dist

from vario.backends.torch.loop import hooks
from vario.core.package import FOLDER, is_own_file
from vario.core.records import Collective

_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "recv_any_source_": "recv",
}
"""Names as in `torch.distributed`; the others are named like their operators, without the underscore."""

_NOT_OF_USER = (str(Path(torch.__file__).parent) + os.sep, FOLDER, "<eval_with_key>", "<frozen ")
_WRAPPERS = ("/contextlib.py", "/typing_extensions.py", "/deepspeed/comm/", "/deepspeed/utils/nvtx.py")
_ENGINE_FILES = (torch.autograd.graph.__file__, torch.autograd.__file__)

_MAX_CALLS = 4096
"""The most distinct calls remembered: a program that generates code all the time must not fill the memory."""


@dataclass(frozen=True)
class Operation:
    """One operator of the namespace `c10d`: the meaning of its arguments."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    group: int
    asynchronous: int | None
    """None if the operator does not say: send and receive."""
    root: int | None

    def input_tensors(self, args: tuple[Any, ...], group: Any) -> list[torch.Tensor]:
        """Return this rank's inputs; what a broadcast only writes into has no values yet."""
        if self.name == "broadcast" and not self._is_root(args, group):
            return []
        return [tensor for at in self.inputs for tensor in _tensors(args[at])]

    def output_tensors(self, args: tuple[Any, ...], group: Any) -> list[torch.Tensor]:
        """Return this rank's outputs; only the root of a reduction has a result."""
        if self.name == "reduce" and not self._is_root(args, group):
            return []
        return [tensor for at in self.outputs for tensor in _tensors(args[at])]

    def _is_root(self, args: tuple[Any, ...], group: Any) -> bool:
        return self.root is None or bool(args[self.root] == group.rank())

    def is_async(self, args: tuple[Any, ...]) -> bool:
        """Whether the caller continues before it is complete, judged by the arguments."""
        at = self.asynchronous
        # An argument with its default value, True, is left out of the call.
        return at is None or at >= len(args) or bool(args[at])


def operation_of(operator: Any) -> Operation | None:
    """Return the description of an operator; None for one that moves no tensors and returns no handle."""
    name = operator._opname
    arguments = operator._schema.arguments
    places = {argument.name: at for at, argument in enumerate(arguments)}
    if "process_group" not in places or not any("Work" in str(found.type) for found in operator._schema.returns):
        return None
    tensors = [at for at, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
    both = [at for at in tensors if arguments[at].name in ("tensors", "tensor")]
    inputs = [at for at in tensors if "input" in arguments[at].name] + both
    outputs = [at for at in tensors if "output" in arguments[at].name] + both
    called = _NAMES.get(name, name.strip("_"))
    if called in ("recv", "barrier"):
        inputs = []
    if called in ("send", "barrier"):
        outputs = []
    return Operation(
        called,
        tuple(inputs),
        tuple(outputs),
        places["process_group"],
        places.get("async_op"),
        places.get("root_rank"),
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value or () for tensor in _tensors(item)]


class Calls:
    """Identifies calls: the same operation, group and dtype from the same place is the same Collective object."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Collective, list[CodeType]]] = {}
        self._files: dict[str, bool] = {}

    def describe(
        self, operation: Operation, is_async: bool, group: Any, tensors: list[torch.Tensor], frame: FrameType | None
    ) -> Collective:
        """Return the Collective of a call from this frame; `tensors` are its inputs, or else its outputs."""
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        trace: list[int] = []
        at = frame
        while at is not None:
            trace += (id(at.f_code), at.f_lasti)
            at = at.f_back
        key = (operation.name, group.group_name, dtype, is_async, *trace)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_CALLS:
                self._known.clear()
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            known = self._known[key] = self._new(operation, is_async, group, dtype, num_bytes, frame)
        return known[0]

    def _new(
        self, operation: Operation, is_async: bool, group: Any, dtype: str, num_bytes: int, frame: FrameType | None
    ) -> tuple[Collective, list[CodeType]]:
        frames = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        if operation.asynchronous is None:
            # `send` is an `isend` that waits; for the others the operators of torch 2.6 do not say, but their callers
            # do.
            torch_frames = [seen for seen in frames if seen.f_code.co_filename == dist.distributed_c10d.__file__]
            waits = any(seen.f_code.co_name in ("send", "recv") for seen in torch_frames)
            is_async = not waits and all(seen.f_locals.get("async_op", True) for seen in torch_frames)
        of_user = next((seen for seen in frames if self._is_of_user(seen)), None)
        if of_user is not None:
            site = f"{of_user.f_code.co_filename}[{of_user.f_lineno}]"
        else:
            site = "backward" if hooks.current_backward() != -1 else "torch"
        call = Collective(
            target=f"{operation.name}@{os.path.basename(site)}",
            operation=operation.name,
            site=site,
            group=group.group_name,
            ranks=_ranks_of(group),
            dtype=dtype,
            num_bytes=num_bytes,
            is_async=is_async,
            stack=tuple(
                f"{seen.f_code.co_filename}[{seen.f_lineno}] {seen.f_code.co_name}"
                for seen in frames
                if not is_own_file(seen.f_code.co_filename)
            ),
        )
        # The code stays with the key: an id is reused when its object is gone.
        return call, [seen.f_code for seen in frames]

    def _is_of_user(self, frame: FrameType) -> bool:
        path = frame.f_code.co_filename
        known = self._files.get(path)
        if known is None:
            # Compiler-generated code may be in any file; the name of its module shows where it comes from.
            is_generated = str(frame.f_globals.get("__name__", "")).startswith("torch.")
            is_wrapper = any(name in path.replace(os.sep, "/") for name in _WRAPPERS)
            known = self._files[path] = not (is_generated or is_wrapper or path.startswith(_NOT_OF_USER))
        return known


def _ranks_of(group: Any) -> tuple[int, ...]:
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):
        # A group that torch.distributed has not created itself: its ranks are counted within it.
        return tuple(range(group.size()))


def is_issued_by_reducer(frame: FrameType | None) -> bool:
    """Whether C++ has called from within backward, without Python in between: then no Python waits for the result."""
    return hooks.current_backward() != -1 and (frame is None or frame.f_code.co_filename in _ENGINE_FILES)


def caller(depth: int) -> FrameType | None:
    """Return the frame this many calls up; None on a thread of autograd, where Python begins with this call."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return None
