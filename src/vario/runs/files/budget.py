"""Limits the memory for the rows of several files to what genuine files of their size need."""

from __future__ import annotations

import os

from vario.core.errors import ConfigError, RunCorrupt
from vario.core.run_files.parquet import MOST_READ_BYTES
from vario.runs.files.row_files import Part, Stream

MOST_EXPANSION = 16
"""Rows of gradients and activations take 2 to 8 times their bytes on disk. Those of weights that never change take 200
times as much: many of them are read in batches, or within a limit that their reader sets."""
SUMMARY_BYTES = 80
"""The memory of a row as a Summary and while several are merged, if the row itself takes less."""
MOST_NAMES = 4_000_000
LIMIT = "VARIO_READ_MB"
"""The environment variable with the memory limit for one result, for runs you trust."""


def allowed_bytes() -> int:
    """Return the memory that the rows of one result may always take, however small their files are."""
    given = os.environ.get(LIMIT)
    if not given:
        return MOST_READ_BYTES
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise ConfigError(f"{LIMIT}: expected a whole number of megabytes, got '{given[:40]}'")
    return max(MOST_READ_BYTES, int(given) << 20)


class Budget:
    """Adds up what was read for one result, over all quantities and ranks, and raises if small files expand to very
    much memory."""

    def __init__(self, row_bytes: int = 0) -> None:
        """`row_bytes`: what the caller needs per row in addition to its columns."""
        self._row_bytes = row_bytes
        self._allowed = allowed_bytes()
        self._num_bytes = 0
        self._on_disk = 0

    def take(self, row_file: Stream | Part, num_bytes: int, num_rows: int = 0) -> None:
        """Count what was kept of a file."""
        self._num_bytes += num_bytes + self._row_bytes * num_rows
        self._on_disk += row_file.size
        if self._num_bytes > max(self._allowed, MOST_EXPANSION * self._on_disk):
            raise RunCorrupt(
                f"{row_file.place}: not read: with the files before it this takes {self._num_bytes >> 20} MB of "
                f"memory, from {self._on_disk >> 10} kB on disk, as malicious files do. Read one target or few steps, "
                f"read it with `run.batches`, or, if you trust this run, set {LIMIT}={(self._num_bytes >> 19) + 1}."
            )


def check_num_names(place: object, num_names: int) -> None:
    """Raise RunCorrupt for more targets than a model can have."""
    if num_names > MOST_NAMES:
        raise RunCorrupt(f"{place}: not read: more than {MOST_NAMES:,} targets")


def check_cells(place: object, num_cells: int, num_rows: int, cell_bytes: int) -> None:
    """Raise for a table of targets by steps that is nearly empty: few rows would take very much memory."""
    if num_cells * cell_bytes > allowed_bytes() and num_cells > MOST_EXPANSION * num_rows:
        raise RunCorrupt(
            f"{place}: not read: {num_rows:,} rows are spread over {num_cells:,} pairs of target and step, which no "
            f"training run records. Read one target or a few steps."
        )
