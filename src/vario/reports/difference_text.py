"""Where two runs diverge, as terminal output."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.core.text import number
from vario.runs.compare.difference import Difference
from vario.runs.compare.difference_text import cut, difference_text, size_words

ONLY_SHOWN = 5
SETTINGS_SHOWN = 40


def render_difference(found: Difference) -> RenderableType:
    """Render what was set differently, the divergence, what differs most, and what only one run has."""
    style = "" if found.divergence is None else "bold"
    blocks: list[RenderableType] = []
    if found.settings:
        blocks += [_settings(found), Text()]
    blocks.append(Text(difference_text(found), style=style))
    if found.most and found.divergence is not None:
        table = Table(
            "largest differences at the end", found.a.name, found.b.name, "difference", box=None, pad_edge=False
        )
        for entry in sorted(found.most, key=lambda each: -each.size):
            name = entry.target
            if entry.quantity != "scalar":
                name = f"{entry.quantity.replace('_', ' ')} {entry.statistic} of {entry.target}"
            table.add_row(Text(name), number(entry.a, 5), number(entry.b, 5), size_words(entry.size))
        blocks += [Text(), table]
    for name, only in ((found.a.name, found.only_a), (found.b.name, found.only_b)):
        if only:
            more = f" and {len(only) - ONLY_SHOWN} more" if len(only) > ONLY_SHOWN else ""
            blocks += [Text(), Text(f"Only in {name}: {', '.join(only[:ONLY_SHOWN])}{more}")]
    return Group(*blocks)


def _shown(value: object) -> object:
    return "-" if value is None else value


def _settings(found: Difference) -> RenderableType:
    table = Table("set differently", found.a.name, found.b.name, box=None, pad_edge=False)
    for name, values in list(found.settings.items())[:SETTINGS_SHOWN]:
        ours, theirs = cut(_shown(values[0]), _shown(values[1]))
        table.add_row(Text(name), Text(ours), Text(theirs))
    if len(found.settings) > SETTINGS_SHOWN:
        table.add_row(Text(f"and {len(found.settings) - SETTINGS_SHOWN} more: --json has all", style="dim"))
    return table
