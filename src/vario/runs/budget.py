"""How much the rows of several files may come to: as much as honest files of their size can hold."""

from __future__ import annotations

from vario.errors import RunCorrupt
from vario.run_files.parquet import MOST_READ_BYTES
from vario.runs.pieces import Part, Stream

MOST_EXPANSION = 300
"""Rows of weights that never change take 200 times their bytes on disk; nothing that a training records takes more."""
MOST_NAMES = 4_000_000


class Budget:
    """Adds up what was read of some pieces, and ends it where small files come to very much."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._on_disk = 0

    def take(self, piece: Stream | Part, num_bytes: int) -> None:
        """Note what was kept of a piece."""
        self._num_bytes += num_bytes
        self._on_disk += piece.size
        if self._num_bytes > max(MOST_READ_BYTES, MOST_EXPANSION * self._on_disk):
            raise RunCorrupt(
                f"{piece.place}: not read: with what comes before it would take {self._num_bytes >> 20} MB of memory, "
                f"from {self._on_disk >> 10} kB on disk; no writer makes such files. Ask for one target or a few steps."
            )


def check_num_names(place: object, num_names: int) -> None:
    """Refuse more targets than a model can have."""
    if num_names > MOST_NAMES:
        raise RunCorrupt(f"{place}: not read: more than {MOST_NAMES:,} targets")
