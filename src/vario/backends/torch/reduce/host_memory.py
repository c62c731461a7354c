"""Memory of the host that kernels read and write themselves, so that a step needs no copy to or from its device.

A block is pinned, and never given back to torch's allocator: a kernel that was launched may use it at any later time.
When the device is done with a block and its numbers are read, another step gets it.
"""

from __future__ import annotations

import threading
from collections import deque
from struct import Struct

import torch

from vario.core.records import COLUMNS, Table

_BLOCK_BYTES = 1 << 18
MOST_ROWS = 2048
"""The most rows that a kernel writes across the bus: beyond that a copy is faster."""
_ALIGNMENT = 16


class _Block:
    """Pinned memory, of which a step uses one piece after another."""

    def __init__(self, num_bytes: int) -> None:
        self.tensor = torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.memory = self.tensor.numpy().data
        self.used = 0

    def piece(self, num_bytes: int) -> int | None:
        """Return where the next piece begins, if there is room for it."""
        begin = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        if begin + num_bytes > len(self.memory):
            return None
        self.used = begin + num_bytes
        return begin


_blocks: list[_Block] = []
"""All of them, so that none is ever freed."""
_free: dict[int, deque[_Block]] = {}
_finished: dict[int, deque[tuple[torch.cuda.Event, list[_Block]]]] = {}
"""By device: blocks that are free when their event has come."""
_lock = threading.Lock()


class StepMemory:
    """The host memory of one step on one device."""

    def __init__(self, device: int) -> None:
        """`device` is the current one whenever a method is called, except `fetch`."""
        self._device = device
        self._taken: list[_Block] = []
        self._done: torch.cuda.Event | None = None
        self._rows: Table | None = None

    def numbers(self, numbers: tuple[int, ...]) -> torch.Tensor:
        """Return whole numbers where kernels can read them until the step ends."""
        layout = Struct(f"{len(numbers)}q")
        block, begin = self._piece(layout.size)
        layout.pack_into(block.memory, begin, *numbers)
        return block.tensor[begin : begin + layout.size].view(torch.int64)

    def rows(self, num_rows: int) -> torch.Tensor:
        """Return memory for the rows that `fetch` reads."""
        size = num_rows * len(COLUMNS) * 8
        block, begin = self._piece(size)
        rows = block.tensor[begin : begin + size].view(torch.float64).view(num_rows, len(COLUMNS))
        self._rows = rows.numpy()
        return rows

    def end(self) -> None:
        """Note that everything which uses this memory has been launched before, on the current stream."""
        self._done = torch.cuda.Event(blocking=True)
        self._done.record()

    def fetch(self) -> Table:
        """Wait for the device and return the rows. Any thread."""
        assert self._done is not None, "the step is still in progress"
        assert self._rows is not None, "the step has no rows"
        self._done.synchronize()
        return self._rows

    def __del__(self) -> None:
        # Without the event nobody knows when the device is done: such a block is never used again.
        if self._taken and self._done is not None:
            _finished.setdefault(self._device, deque()).append((self._done, self._taken))

    def _piece(self, num_bytes: int) -> tuple[_Block, int]:
        for block in self._taken:
            if (begin := block.piece(num_bytes)) is not None:
                return block, begin
        block = _free_block(self._device, num_bytes)
        self._taken.append(block)
        begin = block.piece(num_bytes)
        assert begin is not None
        return block, begin


def _free_block(device: int, num_bytes: int) -> _Block:
    with _lock:
        finished, free = _finished.setdefault(device, deque()), _free.setdefault(device, deque())
        while finished and finished[0][0].query():
            free.extend(finished.popleft()[1])
        for _ in range(len(free)):
            block = free.popleft()
            block.used = 0
            if len(block.memory) >= num_bytes:
                return block
            free.append(block)
        block = _Block(max(num_bytes, _BLOCK_BYTES))
        _blocks.append(block)
        return block
