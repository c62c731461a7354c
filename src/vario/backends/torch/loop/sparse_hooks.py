"""Hooks that are removed from their modules in steps that are not recorded.

torch calls modules without hooks much faster. But compilers guard hooks, and a graph would be compiled again whenever
they come and go. So they are present in the first three steps, to be compiled in, and stay if anything was compiled.
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
        self._hooked: list[tuple[torch.nn.Module, Hook]] = []
        self._off: list[_Entry] = []
        self._num_steps = 0

    def add(self, module: torch.nn.Module, hooks: Iterable[Hook]) -> None:
        """Add hooks that a module now has."""
        self._hooked += [(module, hook) for hook in hooks]

    def clear(self) -> None:
        """Forget the hooks, which are being removed for good."""
        self._hooked.clear()
        self._off.clear()

    def step_began(self) -> None:
        """Add or remove the hooks, depending on whether this step wants them."""
        self._num_steps += 1
        if self._is_wanted() or has_compiled():
            self._put_on()
        elif not self._off and self._num_steps > _FIRST_STEPS:
            self._take_off()

    def _take_off(self) -> None:
        for module, hook in self._hooked:
            key = key_of(hook)
            for name in (*_BEFORE, *_AFTER):
                table = module.__dict__.get(name)
                if table is not None and key in table:
                    self._off.append((table, key, table.pop(key), name in _BEFORE))

    def _put_on(self) -> None:
        for table, key, value, is_first in self._off:
            table[key] = value
            if is_first:
                table.move_to_end(key, last=False)
        self._off.clear()


def has_compiled() -> bool:
    """Whether torch.compile has compiled any graph in this process."""
    # If anything compiles, the module is imported; importing it takes seconds, and this check a microsecond per step.
    compiler = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"].get("unique_graphs"))
