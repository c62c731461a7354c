"""A bounded memory of rows: which were seen before, and how many others have come since."""

from __future__ import annotations

import numpy as np

from vario.backends.base import RowHashes

MAX_ROWS = 1 << 20
"""Rows that are remembered; those seen longest ago are forgotten."""
_BLOCK = 1024
_MAX_RECENT = 1 << 15
"""Rows that are looked up in a dict, until they are sorted in with the others."""


class SeenRows:
    """Remembers hashes in the order they were last seen.

    Each sighting takes the next slot; a row seen again leaves its old one. How many distinct rows came since is the
    number of slots still taken after that one, which is counted in blocks.
    """

    def __init__(self, max_rows: int = MAX_ROWS, max_recent: int = _MAX_RECENT) -> None:
        self._max_rows = max_rows
        self._max_recent = max_recent
        self._hashes = np.zeros(0, np.uint64)
        """By slot; as many as are taken or were."""
        self._sorted = np.zeros(0, np.int64)
        """Slots in the order of their hashes, of all that are not recent."""
        self._keys = np.zeros(0, np.uint64)
        """Their hashes."""
        self._begin(self._hashes)

    def _begin(self, hashes: RowHashes) -> None:
        """Start with these, the oldest first, all sorted in."""
        self._size = len(hashes)
        room = -(-(self._size + self._max_recent) // _BLOCK) * _BLOCK
        self._hashes = np.zeros(room, np.uint64)
        self._hashes[: self._size] = hashes
        self._is_taken = np.arange(room) < self._size
        self._taken_in_block = self._is_taken.reshape(-1, _BLOCK).sum(axis=1)
        self._sorted = np.argsort(hashes, kind="stable")
        self._keys = hashes[self._sorted]
        self._recent: dict[int, int] = {}
        self.num_rows = self._size

    def add(self, hashes: RowHashes) -> list[float]:
        """See rows, one after the other; of each seen before, the share of all known rows that came since."""
        distances: list[float] = []
        for number in hashes.tolist():
            slot = self._slot_of(number)
            if slot is not None:
                distances.append(self._num_since(slot) / self.num_rows)
                self._is_taken[slot] = False
                self._taken_in_block[slot // _BLOCK] -= 1
                self.num_rows -= 1
            self._take(number)
        return distances

    def _slot_of(self, number: int) -> int | None:
        slot = self._recent.get(number)
        if slot is None and len(self._keys):
            at = int(np.searchsorted(self._keys, np.uint64(number)))
            if at < len(self._keys) and int(self._keys[at]) == number:
                slot = int(self._sorted[at])
        return slot if slot is not None and self._is_taken[slot] else None

    def _num_since(self, slot: int) -> int:
        block = slot // _BLOCK
        rest = np.count_nonzero(self._is_taken[slot + 1 : (block + 1) * _BLOCK])
        return int(rest + self._taken_in_block[block + 1 :].sum())

    def _take(self, number: int) -> None:
        if self._size == len(self._hashes) or len(self._recent) >= self._max_recent:
            self._begin(self._hashes[: self._size][self._is_taken[: self._size]][-self._max_rows :])
        slot = self._size
        self._hashes[slot] = number
        self._is_taken[slot] = True
        self._taken_in_block[slot // _BLOCK] += 1
        self._recent[number] = slot
        self._size += 1
        self.num_rows += 1
