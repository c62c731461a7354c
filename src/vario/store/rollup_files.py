"""The rollups of one quantity as files: what each covers, and how small files become larger, coarser ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.run_files.parquet import read_footer, read_groups
from vario.core.run_format import FORMAT
from vario.store.recovery import ROLLUP, ROLLUP_DEPTH
from vario.store.rollup_rows import RollupRows, Steps, folded, from_arrow, together
from vario.store.sorted_file import SortedFile

COARSER = 4
"""A bucket is as long as this many of the level below."""

BUCKETS_PER_FILE = 16
"""A file with this many buckets is final; opening a file costs more than reading one series in it."""

TARGETS_PER_GROUP = 1024

Span = tuple[int, int]
Progression = tuple[int, int, int]
"""First step, distance and count: describes evenly spaced steps."""


@dataclass(frozen=True)
class Rollup:
    """What one file of rollups covers."""

    level: int
    session: int
    parts: tuple[tuple[int, int, int, int], ...]
    """For each part: its number, first and last step, and rows."""
    buckets: tuple[Span, ...]
    """First and last step of each bucket."""
    steps: tuple[Progression, ...]
    """The steps that were recorded."""

    @property
    def range(self) -> Span:
        """The first and last part."""
        return self.parts[0][0], self.parts[-1][0]

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.level}-{self.range[0]:06d}-{self.range[1]:06d}.parquet"

    def holds(self, other: Rollup) -> bool:
        """Whether it covers everything the other one covers."""
        return self.range[0] <= other.range[0] and other.range[1] <= self.range[1]

    def metadata(self) -> dict[bytes | str, bytes | str]:
        """Return it as metadata of the file."""
        return {
            "vario.format": str(FORMAT),
            "vario.session": str(self.session),
            "vario.parts": json.dumps(self.parts),
            "vario.stretches": json.dumps(self.buckets),
            "vario.steps": json.dumps(self.steps),
        }


def joined(rollups: Sequence[Rollup], level: int, buckets: Sequence[Span]) -> Rollup:
    """Return what these consecutive rollups cover together."""
    steps = progressions(np.unique(np.concatenate([every_step(rollup.steps) for rollup in rollups])))
    return Rollup(
        level, rollups[0].session, tuple(part for one in rollups for part in one.parts), tuple(buckets), steps
    )


def coarser(buckets: Sequence[Span]) -> list[Span]:
    """Return the buckets of the next level."""
    groups = [buckets[at : at + COARSER] for at in range(0, len(buckets), COARSER)]
    return [(group[0][0], max(last for _, last in group)) for group in groups]


def progressions(steps: Steps) -> tuple[Progression, ...]:
    """Split increasing steps into evenly spaced runs, greedily from the left."""
    found: list[Progression] = []
    distances = np.diff(steps)
    turns = [*(np.flatnonzero(distances[1:] != distances[:-1]) + 1).tolist(), len(distances)]
    at = 0
    for turn in turns:
        # The distance to the step after a run belongs to no run: a run that begins there ends in a later iteration.
        if turn > at:
            found.append((int(steps[at]), int(distances[at]), turn - at + 1))
            at = turn + 1
    if at < len(steps):
        found.append((int(steps[at]), 1, 1))
    return tuple(found)


def every_step(runs: Sequence[Progression]) -> Steps:
    """Return the steps of these runs."""
    return np.concatenate([np.zeros(0, np.int64), *(first + every * np.arange(num) for first, every, num in runs)])


def read_rollup(path: Path) -> Rollup:
    """Read what a file of rollups covers."""
    match = ROLLUP.fullmatch(path.name)
    assert match is not None
    metadata = read_footer(path, ROLLUP_DEPTH).metadata or {}
    return Rollup(
        int(match[1]),
        int(metadata[b"vario.session"]),
        *(tuple(map(tuple, json.loads(metadata[f"vario.{key}".encode()]))) for key in ("parts", "stretches", "steps")),
    )


def write_rollup(folder: Path, rollup: Rollup, slices: Iterator[RollupRows]) -> None:
    """Write one file of rollups from rows in the order of (target, step)."""
    file: SortedFile | None = None
    rows_per_group = TARGETS_PER_GROUP * len(rollup.buckets)
    try:
        for rows in slices:
            table = rows.to_arrow(rollup.metadata())
            if file is None:
                ranges = ["target", "first_step", "last_step", "bad"]
                file = SortedFile(folder / rollup.name, table.schema, rows_per_group, ranges)
            file.write(table)
        if file is not None:
            file.finish()
    except BaseException:
        if file is not None:
            file.discard()
        raise


def merged_rows(paths: Sequence[Path]) -> Iterator[RollupRows]:
    """Yield the rows of several files in the order of (target, step), some targets at a time: never all in memory."""
    footers = {path: read_footer(path, ROLLUP_DEPTH) for path in paths}
    names = sorted({name for path, footer in footers.items() for name in _names(path, footer)})
    for at in range(0, len(names), TARGETS_PER_GROUP):
        chosen = names[at : at + TARGETS_PER_GROUP]
        found = (_between(path, footer, chosen[0], chosen[-1]) for path, footer in footers.items())
        yield together([rows for rows in found if len(rows)])


def coarser_rows(path: Path, bounds: Steps) -> Iterator[RollupRows]:
    """Yield the rows of a file, folded into the buckets of the next level."""
    for rows in merged_rows([path]):
        yield folded(rows, bounds)


def _names(path: Path, footer: Any) -> list[str]:
    groups = range(footer.num_row_groups)
    column = read_groups(path, ROLLUP_DEPTH, footer, groups, ["target"]).column("target")
    return [name for chunk in column.chunks for name in chunk.dictionary.to_pylist()]


def _between(path: Path, footer: Any, lowest: str, highest: str) -> RollupRows:
    position = footer.schema.names.index("target")
    groups = []
    for index in range(footer.num_row_groups):
        known = footer.row_group(index).column(position).statistics
        if known is None or not known.has_min_max or (known.min <= highest and known.max >= lowest):
            groups.append(index)
    rows = from_arrow(read_groups(path, ROLLUP_DEPTH, footer, groups, footer.schema.names))
    inside = np.array([lowest <= name <= highest for name in rows.names], np.bool_)
    keep = inside[rows.codes] if len(inside) else np.zeros(0, np.bool_)
    return RollupRows(rows.names, rows.codes[keep], {name: values[keep] for name, values in rows.columns.items()})
