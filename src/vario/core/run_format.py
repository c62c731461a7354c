"""The names of a run's files, for writers and readers. See docs/run-format.md."""

from __future__ import annotations

import re
from collections.abc import Iterable

FORMAT = 1
"""The version of the run format that is written while parts stay as they were written."""
REWRITTEN_FORMAT = 2
"""The version of a run whose parts were merged or thinned: older readers would miss rows."""
NEWEST_FORMAT = REWRITTEN_FORMAT
"""Readers reject a newer one."""

RUN = "run.json"
RANK = "rank.json"
STRUCTURE = "structure.json"
COLLECTIVES = "collectives.json"
ALERTS = "alerts.jsonl"
INCIDENTS = "incidents.jsonl"
RULE_MEMORY = "rules.npz"
ACTIONS = "actions.jsonl"
INTERVALS = "intervals.json"
ATTACHMENT_LINES = "attachments.jsonl"
ORIGIN = "origin.json"
DIFF = "origin.diff"
OUTPUT = "output.txt"

LIVE = ".live.arrow"
"""The suffix of a quantity's live stream."""
PART = re.compile(r"part-([0-9]{6,12})(?:-([0-9]{6,12}))?\.(arrow|parquet)")
"""The name of a closed part: its number, or the first and last of those it took the place of; whether it is still a
stream."""
MERGED_PARTS = "merged.json"
"""What the footers of merged parts say, in the folder of their quantity."""
ROLLUPS = "outlines"
"""Named when rollups were called so; changing it would hide those of older runs."""
SNAPSHOTS = "snapshots"
ATTACHMENTS = "attachments"
"""The folder of figures and tables that a script keeps beside its run."""


def part_name(number: int, kind: str, last: int | None = None) -> str:
    """Return the name of a part; `kind` is arrow or parquet, `last` the last of several that it took the place of."""
    merged = "" if last is None or last == number else f"-{last:06d}"
    return f"part-{number:06d}{merged}.{kind}"


def part_range(name: str) -> tuple[int, int] | None:
    """Return the first and last number of the parts whose rows a file has; None for another file."""
    match = PART.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


def current_parts(names: Iterable[str]) -> list[tuple[int, int, str]]:
    """Return first and last number and name of the parts that count, in order.

    Left out are those whose rows are also in a larger file, and streams that are also there as Parquet: a writer died,
    or has not removed them yet.
    """
    found = [(*numbers, name) for name in names if (numbers := part_range(name)) is not None]
    kept: list[tuple[int, int, str]] = []
    # Of those that begin alike the largest comes first; of two forms Parquet.
    for first, last, name in sorted(found, key=lambda part: (part[0], -part[1], part[2].endswith(".arrow"))):
        if not kept or last > kept[-1][1]:
            kept.append((first, last, name))
    return kept
