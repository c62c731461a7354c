"""The names of a run's files, for writers and readers. See docs/run-format.md."""

from __future__ import annotations

import re

FORMAT = 1
"""The version of the run format; readers reject a newer one."""

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
PART = re.compile(r"part-([0-9]{6,12})\.(arrow|parquet)")
"""The name of a closed part: its number, and whether it is still a stream."""
ROLLUPS = "outlines"
"""Named when rollups were called so; changing it would hide those of older runs."""
SNAPSHOTS = "snapshots"
ATTACHMENTS = "attachments"
"""The folder of figures and tables that a script keeps beside its run."""


def part_name(number: int, kind: str) -> str:
    """Return the name of a part; `kind` is arrow or parquet."""
    return f"part-{number:06d}.{kind}"
