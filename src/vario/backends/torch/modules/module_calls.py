"""Calls of chosen modules with their inputs or outputs, in eager code and in compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vario.backends.protocols.events import Undo
from vario.backends.torch import releases
from vario.backends.torch.loop import hooks, module_hooks, operators
from vario.backends.torch.modules.dynamo_guards import guard_hooks_in_dynamo

Call = Callable[[str, tuple[Any, ...]], None]

_CALLS, _RETURNS = f"{module_hooks.ATTRIBUTE}calls", f"{module_hooks.ATTRIBUTE}returns"
"""Attributes of modules: the slots that compiled graphs use to report their calls and their outputs."""


class ModuleCalls:
    """Reports module calls in training passes; a recomputation for checkpointing is not a separate call."""

    def __init__(self, is_training: Callable[[], bool], returned: bool = False) -> None:
        """Report what modules are called with, or what they have `returned`."""
        self._is_training = is_training
        self._returned = returned
        self._slot = _RETURNS if returned else _CALLS
        self._calls: dict[str, list[Call]] = {}

    def follow(self, names: Sequence[str], call: Call) -> None:
        """Run `call(name, values)` when one of these is called: its positional inputs, or the items it returned."""
        for name in names:
            self._calls.setdefault(name, []).append(call)

    def attach(self, modules: Mapping[str, torch.nn.Module]) -> Undo:
        """Hook the modules followed so far."""
        undos = hooks.Undos()
        if self._calls:
            undos.add(guard_hooks_in_dynamo())
        for name in self._calls:
            module = modules[name]
            slot = operators.new_call_slot(lambda args, name=name: self._came(name, args))  # type: ignore[misc]
            # As for activations: a tensor attribute is what layers compiled one by one can share without recompiling.
            module.__dict__[self._slot] = slot
            undos.add(lambda module=module, slot=slot: self._forget(module, slot))  # type: ignore[misc]
            if self._returned:
                undos.add(module_hooks.after_forward(module, self._after(name), _returned))
            else:
                # Before the call, because it may overwrite its inputs.
                undos.add(module_hooks.before_forward(module, self._before(name), _called))
        return undos

    def _before(self, name: str) -> Callable[..., None]:
        return lambda module, args, kwargs: self._came(name, args)

    def _after(self, name: str) -> Callable[..., None]:
        return lambda module, args, kwargs, output: self._came(name, _items(output))

    def _came(self, name: str, args: tuple[Any, ...]) -> None:
        if self._is_training() and hooks.current_backward() == -1:
            for call in self._calls[name]:
                call(name, args)

    def _forget(self, module: torch.nn.Module, slot: torch.Tensor) -> None:
        module.__dict__.pop(self._slot, None)
        operators.free_slot(slot)


def _trace(slot: torch.Tensor, values: tuple[Any, ...]) -> None:
    """Report from inside a compiled graph, where only tensors are visible; other values come as None."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    if tensors:
        torch.ops.vario.observe_call(tensors, places, slot)


def _items(output: Any) -> tuple[Any, ...]:
    return tuple(output) if isinstance(output, (tuple, list)) else (output,)


@module_hooks.module_hook
def _called(module: torch.nn.Module, args: Any, *kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        module_hooks.tell(_called, module, args, *kwargs)
    elif releases.is_in_graph():
        _trace(module.__dict__[_CALLS], args)


@module_hooks.module_hook
def _returned(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        module_hooks.tell(_returned, module, args, kwargs, output)
    elif releases.is_in_graph():
        _trace(module.__dict__[_RETURNS], _items(output))
