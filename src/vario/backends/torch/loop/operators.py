"""The operators that observe from inside compiled graphs.

They take a tensor and a constant slot *tensor*, mutate no argument and return nothing; the side effect registered with
fx keeps them from being removed as dead code. A mutated buffer would trip autograd's version check with regional
compilation, and an int slot would be guarded: one recompilation per layer. The slot is a CPU tensor, so reading it
never waits for a device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vario.backends.torch.releases import keep_effects

Observer = Callable[[str, torch.Tensor], None]

_observers: dict[int, tuple[Observer, Observer]] = {}
_beginners: dict[int, Callable[[bool, bool, Sequence[torch.Tensor]], None]] = {}
_enders: dict[int, Callable[[Sequence[torch.Tensor]], None]] = {}
_callers: dict[int, Callable[[tuple[Any, ...]], None]] = {}
_slots = itertools.count()


def _observe(tensor: torch.Tensor, slot: torch.Tensor, path: str) -> None:
    observers = _observers.get(int(slot))
    if observers is not None:
        observers[0](path, tensor)


def _observe_gradient(gradient: torch.Tensor | None, slot: torch.Tensor, path: str) -> None:
    observers = _observers.get(int(slot))
    # An output of a compiled graph that the loss does not use has no gradient at all.
    if observers is not None and gradient is not None:
        observers[1](path, gradient)


def _begin_forward(inputs: list[torch.Tensor], slot: torch.Tensor, gradients: bool, is_training: bool) -> None:
    beginner = _beginners.get(int(slot))
    if beginner is not None:
        beginner(gradients, is_training, inputs)


def _end_forward(losses: list[torch.Tensor], slot: torch.Tensor) -> None:
    ender = _enders.get(int(slot))
    if ender is not None:
        ender(losses)


def _observe_call(tensors: list[torch.Tensor], places: Sequence[int], slot: torch.Tensor) -> None:
    caller = _callers.get(int(slot))
    if caller is not None:
        args: list[torch.Tensor | None] = [None] * (places[-1] + 1)
        for place, tensor in zip(places, tensors, strict=True):
            args[place] = tensor
        caller(tuple(args))


_library: torch.library.Library | None = None


def define() -> None:
    """Define the operators, once per process."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("vario", "DEF")
    for name, schema, call in (
        ("observe", "(Tensor tensor, Tensor slot, str path) -> ()", _observe),
        ("observe_gradient", "(Tensor gradient, Tensor slot, str path) -> ()", _observe_gradient),
        ("observe_call", "(Tensor[] tensors, int[] places, Tensor slot) -> ()", _observe_call),
        ("begin_forward", "(Tensor[] inputs, Tensor slot, bool gradients, bool is_training) -> ()", _begin_forward),
        ("end_forward", "(Tensor[] losses, Tensor slot) -> ()", _end_forward),
    ):
        _library.define(name + schema)
        _library.impl(name, call, "CompositeExplicitAutograd")
        torch.library.register_fake(f"vario::{name}", lambda *args: keep_effects("vario"), lib=_library)
        torch.fx.node.has_side_effect(getattr(torch.ops.vario, name).default)


def new_slot(observe: Observer, observe_gradient: Observer) -> torch.Tensor:
    """Return a slot whose tensors go to these observers."""
    number = next(_slots)
    _observers[number] = (observe, observe_gradient)
    return torch.tensor(number, device="cpu")


def new_pass_slot(
    begin: Callable[[bool, bool, Sequence[torch.Tensor]], None], end: Callable[[Sequence[torch.Tensor]], None]
) -> torch.Tensor:
    """Return a slot for a compiled model to report the start of a pass, its inputs, its end and the loss."""
    number = next(_slots)
    _beginners[number], _enders[number] = begin, end
    return torch.tensor(number, device="cpu")


def new_call_slot(call: Callable[[tuple[Any, ...]], None]) -> torch.Tensor:
    """Return a slot that a compiled module uses to report its inputs."""
    number = next(_slots)
    _callers[number] = call
    return torch.tensor(number, device="cpu")


def free_slot(slot: torch.Tensor) -> None:
    """Free a slot: graphs compiled with it keep running and observe nothing."""
    _observers.pop(int(slot), None)
    _beginners.pop(int(slot), None)
    _enders.pop(int(slot), None)
    _callers.pop(int(slot), None)
