"""Whether a learning rate is what one of torch's schedulers says it is."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

_MOST_SEARCHES = 4
"""The most searches for a scheduler of one optimizer: each one goes through all objects of the process."""
_JUMP = 1.5
"""After the first search, only changes by more than this factor are worth another."""
_LEAST_STEPS = 2
"""A scheduler found just now that has made fewer steps may have been recreated by mistake."""


class Schedulers:
    """Knows the schedulers of optimizers. They are looked for when a rate has changed, and remembered."""

    def __init__(self) -> None:
        self._rates: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        self._searches: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def agree(self, optimizer: Any) -> bool | None:
        """Whether a scheduler set the optimizer's current rates; None if they have not changed since the last call."""
        rates = [group.get("lr") for group in optimizer.param_groups]
        if not all(isinstance(rate, float) for rate in rates):
            return None  # reading one on a device would wait for it
        before = self._rates.get(optimizer)
        self._rates[optimizer] = rates
        if before is None or before == rates:
            return None
        known = [found for each in self._known.get(optimizer, ()) if (found := each()) is not None]
        if any(_says(each, rates) for each in known):
            return True
        found = self._search(optimizer, _is_jump(before, rates))
        return any(_says(each, rates) and each.last_epoch >= _LEAST_STEPS for each in found)

    def _search(self, optimizer: Any, is_jump: bool) -> list[Any]:
        searches = self._searches.get(optimizer, 0)
        if searches >= _MOST_SEARCHES or (searches and not is_jump):
            return []
        self._searches[optimizer] = searches + 1
        found = _schedulers_of(optimizer)
        self._known[optimizer] = [weakref.ref(each) for each in found]
        return found


def _is_jump(before: list[float], now: list[float]) -> bool:
    """Whether any rate is far from what it was."""
    if len(before) != len(now):
        return True
    return any(max(old, new) > _JUMP * min(old, new) for old, new in zip(before, now, strict=True))


def _says(scheduler: Any, rates: list[float]) -> bool:
    """Whether these are the rates that a scheduler has set last."""
    last = getattr(scheduler, "_last_lr", None)
    return isinstance(last, list) and [float(rate) for rate in last] == rates


def _schedulers_of(optimizer: Any) -> list[Any]:
    """Return the schedulers that hold an optimizer."""
    holders = gc.get_referrers(optimizer)
    # An object may keep its attributes in a dictionary, which is then what refers to the optimizer.
    tables = [each for each in holders if type(each) is dict and each.get("optimizer") is optimizer]
    holders += [owner for table in tables for owner in gc.get_referrers(table)]
    kind = torch.optim.lr_scheduler.LRScheduler
    return [each for each in holders if issubclass(type(each), kind) and each.__dict__.get("optimizer") is optimizer]
