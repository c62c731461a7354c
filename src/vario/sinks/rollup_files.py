"""The outlines of one quantity as files: what each covers, and how small ones become larger and coarser ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.run_files.parquet import read_footer, read_groups
from vario.core.run_format import FORMAT
from vario.sinks.recovery import OUTLINE, OUTLINE_DEPTH
from vario.sinks.rollup_rows import OutlineRows, Steps, folded, from_arrow, together
from vario.sinks.sorted_file import SortedFile

COARSER = 4
"""A stretch is as long as so many of the level below."""

STRETCHES_PER_FILE = 16
"""So many stretches make a file that stays; opening a file costs more than reading one series in it."""

TARGETS_PER_GROUP = 1024

Span = tuple[int, int]
Progression = tuple[int, int, int]
"""First step, distance and number: how steps are told that follow one another evenly."""


@dataclass(frozen=True)
class Outline:
    """What one file of outlines stands for."""

    level: int
    session: int
    parts: tuple[tuple[int, int, int, int], ...]
    """Of each part: its number, first and last step, and rows."""
    stretches: tuple[Span, ...]
    """First and last step of each."""
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

    def holds(self, other: Outline) -> bool:
        """Whether it stands for all that the other one does."""
        return self.range[0] <= other.range[0] and other.range[1] <= self.range[1]

    def metadata(self) -> dict[bytes | str, bytes | str]:
        """As it stands in the file."""
        return {
            "vario.format": str(FORMAT),
            "vario.session": str(self.session),
            "vario.parts": json.dumps(self.parts),
            "vario.stretches": json.dumps(self.stretches),
            "vario.steps": json.dumps(self.steps),
        }


def joined(outlines: Sequence[Outline], level: int, stretches: Sequence[Span]) -> Outline:
    """What stands for all that these do, which follow one another."""
    steps = progressions(np.unique(np.concatenate([every_step(outline.steps) for outline in outlines])))
    return Outline(
        level, outlines[0].session, tuple(part for one in outlines for part in one.parts), tuple(stretches), steps
    )


def coarser(stretches: Sequence[Span]) -> list[Span]:
    """The stretches of the next level."""
    groups = [stretches[at : at + COARSER] for at in range(0, len(stretches), COARSER)]
    return [(group[0][0], max(last for _, last in group)) for group in groups]


def progressions(steps: Steps) -> tuple[Progression, ...]:
    """Steps, each larger than the one before, as the fewest even runs that a glance from the left finds."""
    found: list[Progression] = []
    distances = np.diff(steps)
    turns = [*(np.flatnonzero(distances[1:] != distances[:-1]) + 1).tolist(), len(distances)]
    at = 0
    for turn in turns:
        # The distance to the step after a run belongs to none: a run that begins there ends at a later turn.
        if turn > at:
            found.append((int(steps[at]), int(distances[at]), turn - at + 1))
            at = turn + 1
    if at < len(steps):
        found.append((int(steps[at]), 1, 1))
    return tuple(found)


def every_step(runs: Sequence[Progression]) -> Steps:
    """The steps again."""
    return np.concatenate([np.zeros(0, np.int64), *(first + every * np.arange(num) for first, every, num in runs)])


def read_outline(path: Path) -> Outline:
    """What a file of outlines stands for."""
    match = OUTLINE.fullmatch(path.name)
    assert match is not None
    metadata = read_footer(path, OUTLINE_DEPTH).metadata or {}
    return Outline(
        int(match[1]),
        int(metadata[b"vario.session"]),
        *(tuple(map(tuple, json.loads(metadata[f"vario.{key}".encode()]))) for key in ("parts", "stretches", "steps")),
    )


def write_outline(folder: Path, outline: Outline, slices: Iterator[OutlineRows]) -> None:
    """Write one file of outlines from rows in the order of (target, step)."""
    file: SortedFile | None = None
    rows_per_group = TARGETS_PER_GROUP * len(outline.stretches)
    try:
        for rows in slices:
            table = rows.to_arrow(outline.metadata())
            if file is None:
                ranges = ["target", "first_step", "last_step", "bad"]
                file = SortedFile(folder / outline.name, table.schema, rows_per_group, ranges)
            file.write(table)
        if file is not None:
            file.finish()
    except BaseException:
        if file is not None:
            file.discard()
        raise


def merged_rows(paths: Sequence[Path]) -> Iterator[OutlineRows]:
    """The rows of several files in the order of (target, step), some targets at a time: never all in memory."""
    footers = {path: read_footer(path, OUTLINE_DEPTH) for path in paths}
    names = sorted({name for path, footer in footers.items() for name in _names(path, footer)})
    for at in range(0, len(names), TARGETS_PER_GROUP):
        chosen = names[at : at + TARGETS_PER_GROUP]
        found = (_between(path, footer, chosen[0], chosen[-1]) for path, footer in footers.items())
        yield together([rows for rows in found if len(rows)])


def coarser_rows(path: Path, bounds: Steps) -> Iterator[OutlineRows]:
    """The rows of a file, folded into the stretches of the next level."""
    for rows in merged_rows([path]):
        yield folded(rows, bounds)


def _names(path: Path, footer: Any) -> list[str]:
    groups = range(footer.num_row_groups)
    column = read_groups(path, OUTLINE_DEPTH, footer, groups, ["target"]).column("target")
    return [name for chunk in column.chunks for name in chunk.dictionary.to_pylist()]


def _between(path: Path, footer: Any, lowest: str, highest: str) -> OutlineRows:
    position = footer.schema.names.index("target")
    groups = []
    for index in range(footer.num_row_groups):
        known = footer.row_group(index).column(position).statistics
        if known is None or not known.has_min_max or (known.min <= highest and known.max >= lowest):
            groups.append(index)
    rows = from_arrow(read_groups(path, OUTLINE_DEPTH, footer, groups, footer.schema.names))
    inside = np.array([lowest <= name <= highest for name in rows.names], np.bool_)
    keep = inside[rows.codes] if len(inside) else np.zeros(0, np.bool_)
    return OutlineRows(rows.names, rows.codes[keep], {name: values[keep] for name, values in rows.columns.items()})
