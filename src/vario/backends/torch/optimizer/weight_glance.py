"""A few elements of some weights and moments, compared at every step: was anything written between two updates?

The samples of `unexpected_change` take too long for every one of many short steps. Whoever overwrites a weight mostly
writes all of it, so three elements show that as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.protocols.observing import LateRows
from vario.backends.torch.optimizer.state_samples import StateSamples
from vario.backends.torch.reduce import memory_reads
from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table

MOST_WEIGHTS, ELEMENTS, MOST_STATES = 32, 3, 8
STILL = 12
"""Updates in a row that change none of the elements before that is worth telling."""

Bits = npt.NDArray[Any]


class WeightGlance:
    """The elements of one optimizer's weights, by their bits, and the moments of some of them."""

    def __init__(self, names: Sequence[str], weights: Sequence[torch.Tensor], state: StateSamples) -> None:
        """Choose weights evenly: those given must all have plain memory and one dtype."""
        chosen = np.unique(np.linspace(0, len(weights) - 1, min(len(weights), MOST_WEIGHTS)).round().astype(int))
        self.ids = frozenset(map(id, weights))
        """Of all weights, those given that were not chosen too."""
        self._names = [names[at] for at in chosen]
        self._weights = [weights[at] for at in chosen]
        self._dtype = weights[0].dtype
        self._sizes = [weight.numel() for weight in self._weights]
        places = [np.linspace(0, size - 1, ELEMENTS).round().astype(np.int64) for size in self._sizes]
        self._offsets = np.concatenate(places)
        self._memory: Bits | None = None
        self._places = self._offsets
        """Where the elements are in that memory."""
        self._addresses: list[int] = []
        self._state = state
        self._after: Bits | None = None
        self._before: Bits | None = None
        self.num_still = 0
        """Updates in a row that have changed nothing."""

    def update_called(self, optimizer: torch.optim.Optimizer) -> list[tuple[LateRows, int]]:
        """Return what has changed since the last update, if that was noted, and the most rows it may be."""
        moments = self._state.changes(optimizer)
        after, self._after = self._after, None
        now = self._before = self._read()
        found = [] if moments is None else [moments]
        if after is not None and now is not None and not np.array_equal(now, after):
            found.append((partial(self._rows, now, after), len(self._names)))
        return found

    def update_returned(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the elements after an update."""
        self._state.note(optimizer)
        before, self._before = self._before, None
        self._after = self._read()
        if before is not None and self._after is not None:
            self.num_still = self.num_still + 1 if np.array_equal(before, self._after) else 0

    def forget(self) -> None:
        """Compare nothing with what was noted."""
        self._before = self._after = None
        self._state.forget()
        self.num_still = 0

    def _read(self) -> Bits | None:
        addresses = list(map(torch.Tensor.data_ptr, self._weights))
        if addresses != self._addresses:
            # Other memory: nothing to compare with, and this is the only place that checks what it is.
            self._after, self._addresses, self._memory = None, addresses, None
            if self._can_be_read():
                first = memory_reads.first_places(self._weights)
                if first is not None:
                    self._memory, self._places = memory_reads.around(
                        np.repeat(first, ELEMENTS) + self._offsets, self._dtype
                    )
        return None if self._memory is None else self._memory[self._places]

    def _can_be_read(self) -> bool:
        """Whether the weights are what they were: one that has moved to a device has an address that means nothing."""
        weights = self._weights
        is_same = all(one.dtype is self._dtype for one in weights) and [one.numel() for one in weights] == self._sizes
        return is_same and memory_reads.are_plain(weights) and all(map(memory_reads.has_plain_memory, weights))

    def _rows(self, now: Bits, after: Bits) -> tuple[Sequence[str], Table]:
        now, after = (torch.from_numpy(bits).view(self._dtype).double().numpy() for bits in (now, after))
        has_changed = ((now != after) & ~(np.isnan(now) & np.isnan(after))).reshape(-1, ELEMENTS)
        changes = (now - after).reshape(-1, ELEMENTS)
        mask = has_changed.any(axis=1)
        changes = np.where(has_changed, changes, 0.0)[mask]
        table = np.zeros((len(changes), len(COLUMNS)))
        table[:, COUNT], table[:, SUM], table[:, SUM_SQUARES] = ELEMENTS, changes.sum(1), (changes**2).sum(1)
        table[:, MIN], table[:, MAX] = np.fmin.reduce(changes, axis=1), np.fmax.reduce(changes, axis=1)
        table[:, NANS], table[:, INFS] = np.isnan(changes).sum(1), np.isinf(changes).sum(1)
        table[:, ZEROS] = (changes == 0).sum(1)
        return [name for name, is_one in zip(self._names, mask, strict=True) if is_one], table
