"""Rules as terminal output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vario.core.text import number

WIDTH = 100
OVER = {"rank": "each rank", "ranks": "ranks together"}


def rules_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Render one line per rule."""
    table = Table("rule", "kind", "severity", "checks", "finds", box=None, pad_edge=False)
    for row in rows:
        severity = "report only" if row["is_quiet"] else row["severity"]
        table.add_row(Text(row["name"]), row["kind"], severity, OVER[row["over"]], Text(row["summary"]))
    return table


def rules_list(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Render a paragraph per rule: what it finds, why that matters, what to do, and its options."""
    blocks: list[RenderableType] = []
    for row in rows:
        severity = "for reports only" if row["is_quiet"] else row["severity"]
        heading = Text(row["name"], style="bold")
        heading.append(f"  {row['kind']}, {severity}, {OVER[row['over']]}, from {row['origin']}", style="dim")
        blocks.append(heading)
        causes = [
            (f"Likely cause ({scope})" if scope else "Likely cause", said) for scope, said in row["causes"].items()
        ]
        for word, said in [("", row["summary"]), ("Why", row["why"]), *causes, ("Next", row["next"])]:
            if said:
                blocks.append(Padding(Text(f"{word}: {said}" if word else said), (0, 0, 0, 2)))
        if row["options"]:
            options = ", ".join(f"{name} = {_value(value)}" for name, value in row["options"].items())
            blocks.append(Padding(Text(f"Options: {options}"), (0, 0, 0, 2)))
        blocks.append(Text())
    return Padding(Group(*blocks[:-1]), 0) if blocks else Text("No rule.")


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else number(float(value))
