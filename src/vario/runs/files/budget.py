"""How much the rows of several files may come to: as much as honest files of their size can hold."""

from __future__ import annotations

import os

from vario.core.errors import ConfigError, RunCorrupt
from vario.core.run_files.parquet import MOST_READ_BYTES
from vario.runs.files.row_files import Part, Stream

MOST_EXPANSION = 16
"""Rows of gradients and activations take 2 to 8 times their bytes on disk. Those of weights that never change take 200
times as much: many of them are read in batches, or within a limit that their reader sets."""
SUMMARY_BYTES = 80
"""What a row takes as a Summary and while several are merged, as far as rows hold less than that themselves."""
MOST_NAMES = 4_000_000
LIMIT = "VARIO_READ_MB"
"""How much memory the rows of one answer may take at least, where somebody trusts a run."""


def allowed_bytes() -> int:
    """What the rows of one answer may come to, whatever their files have on disk."""
    given = os.environ.get(LIMIT)
    if not given:
        return MOST_READ_BYTES
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise ConfigError(f"{LIMIT}: expected a whole number of megabytes, got '{given[:40]}'")
    return max(MOST_READ_BYTES, int(given) << 20)


class Budget:
    """Adds up what was read for one answer, of all its quantities and ranks, and ends it where files of few bytes come
    to very much."""

    def __init__(self, row_bytes: int = 0) -> None:
        """`row_bytes` is what whoever asks makes of each row, beside its columns."""
        self._row_bytes = row_bytes
        self._allowed = allowed_bytes()
        self._num_bytes = 0
        self._on_disk = 0

    def take(self, piece: Stream | Part, num_bytes: int, num_rows: int = 0) -> None:
        """Note what was kept of a piece."""
        self._num_bytes += num_bytes + self._row_bytes * num_rows
        self._on_disk += piece.size
        if self._num_bytes > max(self._allowed, MOST_EXPANSION * self._on_disk):
            raise RunCorrupt(
                f"{piece.place}: not read: with what comes before it would take {self._num_bytes >> 20} MB of memory, "
                f"from {self._on_disk >> 10} kB on disk, as hostile files do. Ask for one target or few steps, read it "
                f"with `run.batches`, or, if you trust this run, set {LIMIT}={(self._num_bytes >> 19) + 1}."
            )


def check_num_names(place: object, num_names: int) -> None:
    """Refuse more targets than a model can have."""
    if num_names > MOST_NAMES:
        raise RunCorrupt(f"{place}: not read: more than {MOST_NAMES:,} targets")


def check_cells(place: object, num_cells: int, num_rows: int, cell_bytes: int) -> None:
    """Refuse a table of all targets by all steps that is nearly empty: few rows would come to very much memory."""
    if num_cells * cell_bytes > allowed_bytes() and num_cells > MOST_EXPANSION * num_rows:
        raise RunCorrupt(
            f"{place}: not read: {num_rows:,} rows are scattered over {num_cells:,} places of targets and steps, as no "
            f"training records them. Ask for one target or a few steps."
        )
