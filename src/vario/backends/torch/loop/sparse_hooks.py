"""Hooks that are removed from their modules in steps that are not recorded.

torch calls modules without hooks much faster. But compilers guard hooks, and a graph would be compiled again whenever
they come and go. So they are present in the first three steps, to be compiled in, and stay if anything was compiled.

A step may begin with a call of a part of the model: too late to hook that part. So its hooks stay as well, unless the
loop has called the whole model in all of its latest steps.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from vario.backends.torch.loop.module_hooks import Hook, key_of

_FIRST_STEPS = 2
"""After the step in which watching began."""
_BEFORE = "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"
_AFTER = "_forward_hooks", "_forward_hooks_with_kwargs"

_Entry = tuple["OrderedDict[int, Any]", int, Any, bool]


class SparseHooks:
    """Some of our hooks on some modules, present while they are wanted."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted()`: whether the step that begins is recorded."""
        self._is_wanted = is_wanted
        self._inner, self._entered = _Hooks(), _Hooks()
        self._num_steps = 0

    def add(self, module: torch.nn.Module, hooks: Iterable[Hook], may_begin: bool) -> None:
        """Add hooks that a module now has; `may_begin`: whether a step may begin with a call of this module."""
        (self._entered if may_begin else self._inner).hooked += [(module, hook) for hook in hooks]

    def clear(self) -> None:
        """Forget the hooks, which are being removed for good."""
        self._inner, self._entered = _Hooks(), _Hooks()

    def step_began(self, is_compiled: bool, begins_with_whole: bool) -> None:
        """Add or remove the hooks, depending on whether this step wants them and how it begins."""
        self._num_steps += 1
        is_wanted = is_compiled or self._is_wanted()
        for hooks, may_go in ((self._inner, True), (self._entered, begins_with_whole)):
            if is_wanted or not may_go:
                hooks.put_on()
            elif not hooks.off and self._num_steps > _FIRST_STEPS:
                hooks.take_off()


class _Hooks:
    """Hooks that come and go together."""

    def __init__(self) -> None:
        self.hooked: list[tuple[torch.nn.Module, Hook]] = []
        self.off: list[_Entry] = []

    def take_off(self) -> None:
        for module, hook in self.hooked:
            key = key_of(hook)
            for name in (*_BEFORE, *_AFTER):
                table = module.__dict__.get(name)
                if table is not None and key in table:
                    self.off.append((table, key, table.pop(key), name in _BEFORE))

    def put_on(self) -> None:
        for table, key, value, is_first in self.off:
            table[key] = value
            if is_first:
                table.move_to_end(key, last=False)
        self.off.clear()


def has_compiled() -> bool:
    """Whether torch.compile has compiled any graph in this process."""
    # If anything compiles, the module is imported; importing it takes seconds, and this check a microsecond per step.
    compiler = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"].get("unique_graphs"))
