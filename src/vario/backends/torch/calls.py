"""Calls of chosen modules with what they were called with, in eager code and in compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vario.backends.base import Undo
from vario.backends.torch import hooks, operators
from vario.backends.torch.activations import guard_hooks_in_dynamo

Call = Callable[[str, tuple[Any, ...]], None]

_SLOT = "_vario_calls"


class ModuleCalls:
    """Tells of modules called in passes that train; a recomputation for checkpointing is not a call of its own."""

    def __init__(self, is_training: Callable[[], bool]) -> None:
        self._is_training = is_training
        self._calls: dict[str, list[Call]] = {}

    def follow(self, names: Sequence[str], call: Call) -> None:
        """Run `call(name, positional inputs)` when one of these modules is called."""
        for name in names:
            self._calls.setdefault(name, []).append(call)

    def attach(self, modules: Mapping[str, torch.nn.Module]) -> Undo:
        """Hook the modules followed by now."""
        undos = hooks.Undos()
        if self._calls:
            undos.add(guard_hooks_in_dynamo())
        for name in self._calls:
            module = modules[name]
            slot = operators.new_call_slot(lambda args, name=name: self._came(name, args))  # type: ignore[misc]
            # As for activations: a tensor attribute is what layers compiled one by one can share without recompiling.
            module.__dict__[_SLOT] = slot
            undos.add(lambda module=module, slot=slot: _forget(module, slot))  # type: ignore[misc]
            # Before the call, for it may overwrite its inputs.
            undos.add(hooks.before_forward(module, self._before(name)))
        return undos

    def _before(self, name: str) -> Callable[..., None]:
        def before_forward(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling():
                _trace(module, args)
            else:
                self._came(name, args)

        return before_forward

    def _came(self, name: str, args: tuple[Any, ...]) -> None:
        if self._is_training() and hooks.current_backward() == -1:
            for call in self._calls[name]:
                call(name, args)


def _trace(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
    """The same from inside a compiled graph, where only tensors are seen; other inputs come as None."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    places = [place for place, value in enumerate(args) if isinstance(value, torch.Tensor)]
    if tensors:
        torch.ops.vario.observe_call(tensors, places, module.__dict__[_SLOT])


def _forget(module: torch.nn.Module, slot: torch.Tensor) -> None:
    module.__dict__.pop(_SLOT, None)
    operators.free_slot(slot)
