"""Which part of a model an optimizer updates, if several update different parts."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable

import torch

from vario.backends.torch.targets import Targets


class UpdatedParts:
    """The optimizers seen so far, and the names of what each updates."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, frozenset[int]]] = (
            weakref.WeakKeyDictionary()
        )
        self._count = 0

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer that updates the model, or is about to."""
        if optimizer not in self._known:
            held, known = frozenset(self._targets.engine.parameter_ids(optimizer)), self._targets.engine.names.keys()
            parameters = held if held <= known else held & known
            self._known[optimizer] = self._count, parameters
            self._count += 1

    def name(self, optimizers: Collection[torch.optim.Optimizer]) -> str:
        """Return the part that these update together; empty if no other optimizer updates another part."""
        if len(self._known) < 2:
            return ""
        chosen = [self._known[optimizer] for optimizer in optimizers if optimizer in self._known]
        own = frozenset[int]().union(*(parameters for _, parameters in chosen))
        others = [parameters for optimizer, (_, parameters) in self._known.items() if optimizer not in optimizers]
        if not chosen or not any(other and own.isdisjoint(other) for other in others):
            return ""
        return _common(self._targets.engine.names[number] for number in own) or str(chosen[0][0])


def _common(names: Iterable[str]) -> str:
    """Return the common prefix of dotted names."""
    split = [name.split(".")[:-1] for name in names]
    alike = [parts[0] for parts in zip(*split, strict=False) if len(set(parts)) == 1]
    depth = next((at for at, parts in enumerate(zip(*split, strict=False)) if len(set(parts)) > 1), len(alike))
    return ".".join(alike[:depth])
