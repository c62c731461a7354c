"""Recent changes as text, one line each: where, how, and the curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.core.text import number
from vario.reports.terminal_plot import spans_decades, sparkline
from vario.runs.findings.change_points import ChangePoint, point_text
from vario.runs.findings.changes import Change, Ranking

CURVE_WIDTH = 24


def render_changes(ranking: Ranking) -> RenderableType:
    """Render the changes as a table, largest first."""
    looked = f"{ranking.num_series:,} series compared"
    if not ranking.changes:
        return Text(f"Nothing stands out: {looked}, up to step {ranking.last_step}.", style="green")
    table = Table("what", "how", "since", "curve", box=None, pad_edge=False)
    for change in ranking.changes:
        curve = sparkline(change.values, width=CURVE_WIDTH, log=spans_decades(change.values))
        table.add_row(Text(_what(change)), Text(how(change)), str(change.step), Text(curve, style="cyan", no_wrap=True))
    return Group(table, Text(f"\n{looked}, up to step {ranking.last_step}.", style="dim"))


def render_points(points: Sequence[ChangePoint], last_step: int | None) -> RenderableType:
    """Render the steps at which levels shifted, strongest first."""
    if not points:
        return Text(f"No level shifted, up to step {last_step}.", style="green")
    table = Table("step", "what shifted there", box=None, pad_edge=False)
    for point in points:
        table.add_row(str(point.step), Text(point_text(point)))
    return Group(table, Text(f"\nStrongest first, up to step {last_step}.", style="dim"))


def how(change: Change) -> str:
    """Describe a change in words."""
    before, after = number(change.before, 3), number(change.after, 3)
    if change.kind == "non-finite":
        return f"NaN or Inf, was {before}"
    if change.kind == "constant":
        return f"stopped changing, at {after}"
    if change.kind == "spread":
        more = "noisier" if change.after > change.before else "quieter"
        return f"{number(_times(change), 2)} times {more}"
    ratio = change.after / change.before if change.before > 0 and change.after > 0 else None
    by = "" if ratio is None or change.statistic == "zeros" else f" (x {number(ratio, 3)})"
    if change.kind in ("spike", "drop"):
        return f"one {change.kind}, {before} → {after}{by}"
    is_above = change.after > change.before
    if _went_on(change) is not is_above:
        # Compare with its trend, extrapolated: a curve may rise and still be below that.
        return f"{'above' if is_above else 'below'} its trend: {before} expected, {after} now{by}"
    moves = ("rises, " if is_above else "falls, ") if change.kind == "trend" else ""
    return f"{moves}{before} → {after}{by}"


def _went_on(change: Change) -> bool:
    """Whether it is higher now than in the first half of the compared steps."""
    past = change.values[: max(1, len(change.values) // 2)]
    known = past[np.isfinite(past)]
    return bool(change.after > np.median(known)) if len(known) else change.after > change.before


def _times(change: Change) -> float:
    low, high = sorted((change.before, change.after))
    return high / low if low > 0 else float("inf")


def _what(change: Change) -> str:
    if change.quantity == "scalar":
        name = change.target
    else:
        statistic = "share of zeros" if change.statistic == "zeros" else change.statistic
        name = f"{change.quantity.replace('_', ' ')} {statistic} of {change.target}"
    if change.num_alike > 1:
        name += f", and {change.num_alike - 1} of {change.num_targets - 1} others"
    elif change.same:
        name += f" (= {len(change.same)} more)"
    return name
