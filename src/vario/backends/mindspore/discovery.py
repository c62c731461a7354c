"""Find the models of an unchanged training script."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

from mindspore import nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer

from vario.backends.mindspore import releases, taps
from vario.backends.protocols.framework import Found

_MAX_LOOKS = 50
"""Gradient computations that show whether a new optimizer has a model."""
_WRAPPERS = ("mindspore.nn.wrap.", "mindspore.nn.optim.", "mindspore.train.", "mindspore.parallel.", "mindspore.amp")
_OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)

log = logging.getLogger("vario")


class Search(taps.Follower):
    """Looks for the cells of new optimizers, when gradients are about to be computed for the first time."""

    def __init__(self, found: Found, is_followed: Callable[[Any], bool]) -> None:
        """`found(models, 0, ())` gets the models; `is_followed(optimizer)`: a Monitor counts its updates as steps."""
        releases.check_numpy()
        self._found = found
        self._is_followed = is_followed
        self._undos = [taps.follow(self), taps.after_making(self._optimizer_came)]
        self.begin()

    def begin(self) -> None:
        """Start from scratch: at the start, or in a process that was forked."""
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._looks_left = _MAX_LOOKS if live_optimizers() else 0
        self._has_computed = False

    def stop(self) -> None:
        """Stop looking."""
        while self._undos:
            self._undos.pop()()

    def why_nothing(self) -> str:
        """Return why no model was found so far and what to do, in one sentence."""
        if not live_optimizers():
            return (
                "the script made no MindSpore optimizer. If it updates its parameters itself, add "
                "`monitor = vario.watch(cell)` to it, and `monitor.step()` after each step"
            )
        if not self._has_computed:
            return (
                "no gradient was computed by `value_and_grad`, `GradOperation` or a training cell. If another process "
                "does the training, start it with `vario run`"
            )
        return "no cell has the parameters of the script's optimizer. Add `vario.watch(cell, optimizer)` to the script"

    def _optimizer_came(self, optimizer: Any) -> None:
        self._looks_left = _MAX_LOOKS

    # What the taps tell

    def computation_began(self) -> None:
        """Look for models before their first pass."""
        self._has_computed = True
        if self._looks_left:
            self._looks_left -= 1
            self._look()

    def _look(self) -> None:
        new = [one for one in live_optimizers() if one not in self._known and not self._is_followed(one)]
        if not new:
            self._looks_left = 0
            return
        models = models_of(new)
        if not models:
            return
        self._known.update(new)
        self._looks_left = 0
        self._found(models, 0, ())


def live_optimizers() -> list[Any]:
    """Return all live optimizers."""
    return [one for one in gc.get_objects() if issubclass(type(one), _OPTIMIZERS) and hasattr(one, "parameters")]


def models_of(optimizers: list[Any]) -> dict[str, Any]:
    """Return the outermost live cells with parameters of these optimizers, without what MindSpore wraps around them."""
    trained = {id(parameter) for optimizer in optimizers for parameter in optimizer.parameters}
    cells = [one for one in gc.get_objects() if issubclass(type(one), nn.Cell) and not is_wrapper(one)]
    inner = {id(child) for cell in cells for child in cell._cells.values() if child is not None}
    outermost = [
        cell
        for cell in cells
        if id(cell) not in inner and any(id(parameter) in trained for parameter in cell.get_parameters())
    ]
    if len(outermost) == 1:
        return {"": outermost[0]}
    names: dict[str, Any] = {}
    for cell in outermost:
        name = type(cell).__name__.lower()
        names[name if name not in names else f"{name}{len(names)}"] = cell
    return names


def is_wrapper(cell: Any) -> bool:
    """Whether a cell is part of the training and not of the model: an optimizer, or a cell that contains one."""
    if isinstance(cell, _OPTIMIZERS) or "_cells" not in vars(cell):
        return True
    is_mindspores = any(cls.__module__.startswith(_WRAPPERS) for cls in type(cell).__mro__)
    return is_mindspores or any(isinstance(child, _OPTIMIZERS) for child in cell._cells.values())
