"""The live screen of `vario top`: runs as rows, and one run with its ranks and a heat map in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vario.core.text import duration, number, shown
from vario.runs.files.status import RankState
from vario.runs.table.summary import RunSummary
from vario.runs.views.heat import Heat

BARS = "▁▂▃▄▅▆▇█"
SPARK_CELLS = 20
STATES = {"running": "green", "stalled": "yellow", "crashed": "red", "interrupted": "yellow"}
SCALE = ((46, 38, 94), (38, 90, 138), (32, 140, 140), (90, 180, 120), (236, 226, 120))
"""From small to large."""
BAD = "rgb(255,0,140)"
HELP = "j k move · Enter open · Esc back · / search · s sort · q quit"


def render_runs(runs: Sequence[RunSummary], current: int, rows: int, sort: str, search: str = "") -> RenderableType:
    """Render a screen of runs; `rows` is how many fit."""
    table = Table(
        "", "run", "state", "step", "progress", "last loss", "", "steps/s", "alerts", box=None, pad_edge=False
    )
    first = max(0, min(current - rows // 2, len(runs) - rows))
    for at in range(first, min(len(runs), first + rows)):
        table.add_row(*_cells(runs[at], at == current), style="reverse" if at == current else "")
    count = sum(run.brief.state == "running" for run in runs)
    head = Text(f"{len(runs)} runs, {count} running · by {sort} · {HELP}", style="dim", no_wrap=True)
    return Group(*([Text(shown(search), style="bold")] if search else []), head, table)


def _cells(run: RunSummary, is_current: bool) -> list[RenderableType]:
    brief = run.brief
    pace = brief.pace
    left = "" if pace.eta_seconds is None else f", {duration(pace.eta_seconds)} left"
    progress = "" if pace.progress is None else f"{100 * pace.progress:.0f} %{left}"
    found = run.incidents
    alerts = Text(f"{found['page']} page " if found["page"] else "", style="red")
    alerts.append(f"{found['warn']} warn" if found["warn"] else "", style="yellow")
    return [
        ">" if is_current else " ",
        Text(shown(run.title), no_wrap=True, overflow="ellipsis"),
        Text(brief.state, style=STATES.get(brief.state, "")),
        "-" if pace.step is None else str(pace.step),
        progress,
        number(brief.loss),
        spark(brief.spark),
        number(pace.steps_per_second, 3),
        alerts,
    ]


def spark(values: Sequence[float], cells: int = SPARK_CELLS) -> str:
    """Return a curve in block characters; a NaN is an x."""
    if not len(values):
        return ""
    picked = np.array(values, np.float64)[np.linspace(0, len(values) - 1, min(cells, len(values))).astype(int)]
    known = picked[np.isfinite(picked)]
    low, span = (known.min(), np.ptp(known)) if len(known) else (0.0, 0.0)
    heights = np.zeros(len(picked)) if span == 0 else (picked - low) / span * (len(BARS) - 1)
    return "".join("x" if not np.isfinite(value) else BARS[round(value)] for value in heights)


def render_run(run: RunSummary, ranks: Sequence[RankState], heat: Heat | None, texts: Sequence[str]) -> RenderableType:
    """Render one run: its line, what was found, its ranks and its heat map."""
    blocks: list[RenderableType] = [render_runs([run], 0, 1, "name")]
    blocks += [Text(shown(text), style="red") for text in texts[:4]]
    if len(ranks) > 1:
        table = Table("rank", "host", "state", "last step", box=None, pad_edge=False)
        for found in ranks[:16]:
            step = "-" if found.last_step is None else str(found.last_step)
            table.add_row(str(found.rank), Text(shown(found.host)), Text(found.state), step)
        blocks.append(table)
    if heat is not None and heat.values.size:
        title = f"{heat.quantity.replace('_', ' ')} {heat.statistic}, steps {heat.first[0]} to {heat.last[-1]}"
        blocks.append(Panel(heat_blocks(heat), title=Text(title), expand=False))
    return Group(*blocks)


def heat_blocks(heat: Heat) -> Text:
    """Return a heat map: a row for each target, two columns of colour for each cell, NaN and Inf in pink."""
    sizes = np.abs(heat.values)
    if heat.kinds:
        sizes[[bool(kind) for kind in heat.kinds]] = np.nan
    seen = sizes[np.isfinite(sizes) & (sizes > 0)]
    low, high = (np.log(seen.min()), np.log(seen.max())) if len(seen) else (0.0, 0.0)
    width = max((len(name) for name in heat.targets), default=0)
    text = Text(no_wrap=True)
    for row, name in enumerate(heat.targets):
        label = shown(name)
        text.append(f"{label if len(label) <= 30 else '…' + label[-29:]:<{min(width, 30)}} ", style="dim")
        for column in range(sizes.shape[1]):
            text.append(*_cell(heat, sizes, row, column, low, high))
        text.append("\n" if row + 1 < len(heat.targets) else "")
    return text


def _cell(
    heat: Heat, sizes: npt.NDArray[np.float64], row: int, column: int, low: float, high: float
) -> tuple[str, str]:
    if heat.bad[row, column]:
        return "x", BAD
    if not heat.has[row, column]:
        return " ", ""
    if heat.kinds and heat.kinds[row]:
        return "░", "dim"  # token ids and masks have no size
    size = sizes[row, column]
    place = 0.0 if size <= 0 or high <= low else float((np.log(size) - low) / (high - low))
    return "█", _color(min(1.0, max(0.0, place)))


def _color(place: float) -> str:
    at = min(int(place * (len(SCALE) - 1)), len(SCALE) - 2)
    part = place * (len(SCALE) - 1) - at
    mixed = (round(a + part * (b - a)) for a, b in zip(SCALE[at], SCALE[at + 1], strict=True))
    return f"rgb({','.join(map(str, mixed))})"
