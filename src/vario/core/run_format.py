"""What the files of a run are called: one table for those who write and those who read. See docs/run-format.md."""

from __future__ import annotations

import re

FORMAT = 1
"""The version of the run format; readers refuse a newer one."""

RUN = "run.json"
RANK = "rank.json"
STRUCTURE = "structure.json"
COLLECTIVES = "collectives.json"
ALERTS = "alerts.jsonl"
INCIDENTS = "incidents.jsonl"
ACTIONS = "actions.jsonl"

LIVE = ".live.arrow"
"""What the name of a quantity's stream ends with while it grows."""
PART = re.compile(r"part-([0-9]{6,12})\.(arrow|parquet)")
"""A closed part: its number, and whether it is still a stream."""
ROLLUPS = "outlines"
SNAPSHOTS = "snapshots"


def part_name(number: int, kind: str) -> str:
    """What a part is called; `kind` is arrow or parquet."""
    return f"part-{number:06d}.{kind}"
