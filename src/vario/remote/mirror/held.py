"""One file of a mirror: what it is, and which of its bytes are here."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from vario.core import run_format
from vario.remote.places import Entry

BLOCK_BYTES = 256 << 10
"""Files that do not change are fetched in such pieces."""
SMALL_BYTES = 64 << 10
"""A file that is no larger is fetched whole."""

WHOLE_BYTES = 64 << 20
"""A larger file is not fetched whole, whatever its name."""
GROWING_BYTES = 128 << 20
"""As much as a reader takes of a stream."""
OVERLAP_BYTES = 4 << 10
"""So much of what is here is fetched again with the new end of a file, to see that it is still the same file."""

SMALL, GROWING, FIXED = "small", "growing", "fixed"
STATUS = (run_format.RUN, run_format.RANK)
"""What says how far a run is: never newer than the rows beside it."""


def kind_of(name: str, size: int) -> str:
    """How a file is fetched: whole, by its end when it has grown, or in blocks."""
    if name.endswith((run_format.LIVE, ".jsonl")):
        return GROWING if size <= GROWING_BYTES else FIXED
    is_large = size > SMALL_BYTES and name.endswith((".parquet", ".npz", ".png"))
    return FIXED if is_large or size > WHOLE_BYTES else SMALL


@dataclass(slots=True)
class Held:
    """A file of a mirror, as long as nothing takes its place."""

    entry: Entry
    kind: str
    inode: int = 0
    have: int = 0
    """How many bytes from the beginning are here: of a file that grows, or of a small one."""
    blocks: set[int] = field(default_factory=set)
    """Numbers of the blocks that are here, of a file that does not change."""
    used: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def num_bytes(self) -> int:
        """How many bytes of it are here, to a block."""
        return min(self.entry.size, len(self.blocks) * BLOCK_BYTES) if self.kind == FIXED else self.have

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of blocks, first and last, that have to be fetched for these bytes."""
        found: list[tuple[int, int]] = []
        for block in range(first // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1):
            if block in self.blocks:
                continue
            if found and found[-1][1] == block - 1:
                found[-1] = found[-1][0], block
            else:
                found.append((block, block))
        return found

    def to_json(self) -> list[Any]:
        """Return what the index of a mirror keeps."""
        entry = self.entry
        return [entry.size, entry.tag, entry.mtime, self.kind, self.inode, self.have, sorted(self.blocks), self.used]

    @classmethod
    def from_json(cls, plain: Any) -> Held:
        """Read what the index of a mirror keeps; raises ValueError or TypeError for anything else."""
        size, tag, mtime, kind, inode, have, blocks, used = plain
        if kind not in (SMALL, GROWING, FIXED):
            raise ValueError(kind)
        entry = Entry(int(size), str(tag), float(mtime))
        return cls(entry, kind, int(inode), int(have), {int(block) for block in blocks}, float(used))
