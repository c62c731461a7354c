"""How one tensor's elements are distributed over powers of two, as terminal output: a line per step."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.core.elements.bins import EDGES, IS_SPLIT, MINUS_INF, NAN, PLUS_INF, ZERO, by_cell
from vario.core.text import number
from vario.runs.views.tensors.distributions import Distribution

BLOCKS = " ▁▂▃▄▅▆▇█"
MOST_STEPS = 24


def render_distribution(found: Distribution) -> RenderableType:
    """Render the magnitudes of the elements, from small to large."""
    cells = by_cell(found.counts)
    # Cells that are split are one column.
    whole = np.add.reduceat(cells, np.flatnonzero(~IS_SPLIT[:-1]), axis=1)
    lows = EDGES[:-1][~IS_SPLIT[:-1]]
    occupied = np.flatnonzero(whole.sum(axis=0))
    heading = Text(f"{found.quantity} of {found.target}", style="bold")
    if not len(occupied):
        return Group(heading, Text("all elements are zero, NaN or infinite"))
    first, last = int(occupied[0]), int(occupied[-1])
    chosen = np.unique(np.linspace(0, len(found) - 1, min(len(found), MOST_STEPS)).astype(int))
    table = Table(box=None, pad_edge=False)
    table.add_column("step", justify="right")
    table.add_column(f"{_edge(lows, first)} to {_edge(lows, last + 1)}, a column per power of two", no_wrap=True)
    for name in ("zero", "NaN", "Inf"):
        table.add_column(name, justify="right")
    for at in chosen.tolist():
        row = whole[at, first : last + 1]
        # Square roots: a hundredth of the elements is still seen.
        heights = np.ceil(np.sqrt(row / max(row.max(), 1)) * (len(BLOCKS) - 1)).astype(int)
        counts = found.counts[at]
        others = (counts[ZERO], counts[NAN], counts[MINUS_INF] + counts[PLUS_INF])
        curve = Text("".join(BLOCKS[height] for height in heights.tolist()), style="cyan")
        table.add_row(str(found.steps[at]), curve, *(f"{count:,}" if count else "" for count in others))
    return Group(heading, table)


def _edge(lows: np.ndarray[tuple[int], np.dtype[np.float64]], at: int) -> str:
    if at >= len(lows):
        return "any"
    return "0" if lows[at] == 0 else f"2^{int(np.log2(lows[at]))} ({number(float(lows[at]), 2)})"
