"""Plots in the terminal: a sparkline for a table cell, a line plot for a screen.

Values that cannot be drawn are marked: a NaN with the letter N where it occurs, an Inf with I.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vario.core.text import number

Values = npt.NDArray[np.float64]

BLOCKS = "▁▂▃▄▅▆▇█"
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""Bits of a braille character: two columns of four dots."""
LABEL_WIDTH = 10
FARTHEST = 1e300
"""Larger values are drawn here, so that the difference of two is still finite."""


def sparkline(values: Sequence[float] | Values, width: int = 24, log: bool = False, height: int = 1) -> str:
    """Draw a curve with block characters, at most `width` characters wide and `height` lines high."""
    points = np.asarray(values, dtype=np.float64)
    if not len(points):
        return ""
    low, high = _limits(_scaled(points, log))
    columns = []
    for bucket in np.array_split(points, min(width, len(points))):
        visible = _scaled(bucket, log)
        visible = visible[np.isfinite(visible)]
        mark = _mark(bucket)
        if mark != " " or not len(visible):
            columns.append(" " * (height - 1) + mark)
        else:
            share = (float(visible.mean()) - low) / (high - low)
            columns.append(_column(1 + round(share * (8 * height - 1)), height))
    return "\n".join("".join(column[row] for column in columns).rstrip() for row in range(height))


def _column(level: int, height: int) -> str:
    """A bar of `level` eighths of a line, from the top down."""
    full, rest = divmod(level, 8)
    bar = BLOCKS[-1] * full + (BLOCKS[rest - 1] if rest else "")
    return f"{bar:<{height}}"[::-1]


def line_plot(
    steps: Sequence[int] | npt.NDArray[np.int64],
    values: Sequence[float] | Values,
    width: int = 72,
    height: int = 10,
    log: bool = False,
) -> str:
    """Draw a curve over its steps with axes, `width` by `height` characters."""
    points = np.asarray(values, dtype=np.float64)
    where = np.asarray(steps, dtype=np.float64)
    if not len(points):
        return "(no values)"
    columns = max(8, width - LABEL_WIDTH - 2)
    heights = _scaled(points, log)
    low, high = _limits(heights)
    first, last = where[0], max(where[-1], where[0] + 1)
    across = (where - first) / (last - first) * (columns * 2 - 1)
    # Without finite values there is nothing to draw, but the marks below still show what happened where.
    up = (heights - low) / (high - low) * (height * 4 - 1)
    cells = _canvas(across, up, columns, height)
    rows = []
    for row in range(height):
        level = high - (high - low) * (row + 0.5) / height if row not in (0, height - 1) else (high, low)[row > 0]
        label = number(float(10**level if log else level), 3) if row % 3 == 0 or row == height - 1 else ""
        if not np.isfinite(heights).any():
            label = ""
        rows.append(f"{label:>{LABEL_WIDTH}} ┤" + "".join(chr(0x2800 + cell) for cell in cells[row]).rstrip("\u2800"))
    marks = _mark_row(points, (across / 2).astype(np.int64), columns)
    if marks.strip():
        rows.append(f"{'not finite':>{LABEL_WIDTH}} │{marks.rstrip()}")
    left, right = str(int(where[0])), str(int(where[-1]))
    rows.append(" " * LABEL_WIDTH + " └" + "─" * columns)
    rows.append(f"{'step':>{LABEL_WIDTH}}  {left}{right:>{max(columns - len(left), len(right) + 1)}}")
    return "\n".join(rows)


def spans_decades(values: Sequence[float] | Values) -> bool:
    """Whether a curve is positive and spans so much that only a logarithmic axis shows it."""
    points = np.asarray(values, dtype=np.float64)
    finite = points[np.isfinite(points)]
    return bool(len(finite) and finite.min() > 0 and finite.max() / finite.min() > 1e3)


def _scaled(values: Values, log: bool) -> Values:
    """Finite heights; anything else, and values without a logarithm, become NaN."""
    with np.errstate(all="ignore"):
        heights = np.log10(values) if log else values.copy()
    heights[~np.isfinite(heights)] = np.nan
    return heights.clip(-FARTHEST, FARTHEST)


def _limits(heights: Values) -> tuple[float, float]:
    finite = heights[np.isfinite(heights)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    margin = abs(low) / 2 or 0.5
    return (low, high) if high > low else (low - margin, high + margin)


def _mark(values: Values) -> str:
    if np.isnan(values).any():
        return "N"
    return "I" if np.isinf(values).any() else " "


def _mark_row(values: Values, columns: npt.NDArray[np.int64], width: int) -> str:
    row = [" "] * width
    for value, column in zip(values, columns, strict=True):
        if not np.isfinite(value) and row[column] != "N":
            row[column] = "N" if np.isnan(value) else "I"
    return "".join(row)


def _canvas(across: Values, up: Values, columns: int, height: int) -> npt.NDArray[np.int64]:
    """Draw the line through all points in braille cells, with a gap where a point is missing."""
    cells = np.zeros((height, columns), dtype=np.int64)
    for index in range(len(up)):
        if not np.isfinite(up[index]):
            continue
        start = index - 1 if index and np.isfinite(up[index - 1]) else index
        length = int(max(abs(across[index] - across[start]), abs(up[index] - up[start]))) + 2
        x = np.rint(np.linspace(across[start], across[index], length)).astype(np.int64)
        y = height * 4 - 1 - np.rint(np.linspace(up[start], up[index], length)).astype(np.int64)
        np.bitwise_or.at(cells, (y // 4, x // 2), DOTS[y % 4, x % 2])
    return cells
