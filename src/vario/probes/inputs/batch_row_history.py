"""A bounded history of batch rows: which were seen before, and how many others came since."""

from __future__ import annotations

import numpy as np

from vario.backends.protocols.observing import RowHashes

MAX_ROWS = 1 << 16
"""The most rows remembered; the least recently seen are forgotten. Each takes 13 bytes: 0.8 MiB."""
_BLOCK = 1024
_MAX_RECENT = 1 << 13
"""The most rows in the dict, before they are merged into the sorted array."""


class BatchRowHistory:
    """Remembers hashes in the order they were last seen.

    Each occurrence takes the next slot; a row seen again leaves its old slot. The number of distinct rows since then is
    the number of slots taken after it, counted in blocks.
    """

    def __init__(self, max_rows: int = MAX_ROWS, max_recent: int = _MAX_RECENT) -> None:
        self._max_rows = max_rows
        self._max_recent = max_recent
        # Filled, so that the memory is taken now and not bit by bit over thousands of steps.
        most = max_rows + max_recent
        self._all_keys, self._all_slots = np.full(most, 0, np.uint64), np.full(most, 0, np.int32)
        self._begin(np.zeros(0, np.uint64))

    def _begin(self, hashes: RowHashes) -> None:
        """Start with these hashes, oldest first, all sorted."""
        self._num_old = self._size = self.num_rows = len(hashes)
        room = -(-(self._size + self._max_recent) // _BLOCK) * _BLOCK
        self._is_taken = np.arange(room) < self._size
        self._taken_in_block = self._is_taken.reshape(-1, _BLOCK).sum(axis=1)
        order = np.argsort(hashes, kind="stable")
        self._keys, self._slots = self._all_keys[: self._size], self._all_slots[: self._size]
        """The old hashes, sorted, and their slots."""
        self._keys[:], self._slots[:] = hashes[order], order
        self._recent: dict[int, int] = {}
        """Slots of the recent rows, by hash."""
        self._new = np.zeros(self._max_recent, np.uint64)
        """Hashes of the recent rows, by slot, including slots no longer taken."""

    def add(self, hashes: RowHashes) -> list[float]:
        """Add rows in order; for each seen before, return the share of all known rows that came since."""
        numbers = hashes.tolist()
        if self._are_unseen(hashes, numbers):
            self._take_all(hashes, numbers)
            return []
        distances: list[float] = []
        for number in numbers:
            slot = self._slot_of(number)
            if slot is not None:
                distances.append(self._num_since(slot) / self.num_rows)
                self._is_taken[slot] = False
                self._taken_in_block[slot // _BLOCK] -= 1
                self.num_rows -= 1
            self._take(number)
        return distances

    def _are_unseen(self, hashes: RowHashes, numbers: list[int]) -> bool:
        """Whether all are new and fit: the usual case with a healthy loader, added in one go."""
        if self._size + len(numbers) > self._num_old + self._max_recent:
            return False
        if len(set(numbers)) < len(numbers) or not self._recent.keys().isdisjoint(numbers):
            return False
        if not len(self._keys):
            return True
        at = np.minimum(np.searchsorted(self._keys, hashes), len(self._keys) - 1)
        return not (self._keys[at] == hashes).any()

    def _take_all(self, hashes: RowHashes, numbers: list[int]) -> None:
        slots = np.arange(self._size, self._size + len(numbers))
        self._new[slots - self._num_old] = hashes
        self._is_taken[slots] = True
        np.add.at(self._taken_in_block, slots // _BLOCK, 1)
        self._recent.update(zip(numbers, slots.tolist(), strict=True))
        self._size += len(numbers)
        self.num_rows += len(numbers)

    def _slot_of(self, number: int) -> int | None:
        slot = self._recent.get(number)
        if slot is None and len(self._keys):
            at = int(np.searchsorted(self._keys, np.uint64(number)))
            if at < len(self._keys) and int(self._keys[at]) == number:
                slot = int(self._slots[at])
        return slot if slot is not None and self._is_taken[slot] else None

    def _num_since(self, slot: int) -> int:
        block = slot // _BLOCK
        rest = np.count_nonzero(self._is_taken[slot + 1 : (block + 1) * _BLOCK])
        return int(rest + self._taken_in_block[block + 1 :].sum())

    def _take(self, number: int) -> None:
        if self._size == self._num_old + self._max_recent:
            self._sort_in()
        slot = self._size
        self._new[slot - self._num_old] = number
        self._is_taken[slot] = True
        self._taken_in_block[slot // _BLOCK] += 1
        self._recent[number] = slot
        self._size += 1
        self.num_rows += 1

    def _sort_in(self) -> None:
        hashes = np.empty(self._size, np.uint64)
        hashes[self._slots] = self._keys
        hashes[self._num_old :] = self._new[: self._size - self._num_old]
        self._begin(hashes[self._is_taken[: self._size]][-self._max_rows :])
