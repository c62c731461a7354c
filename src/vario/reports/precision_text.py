"""What each tensor would lose in a lower precision, as terminal output."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.core.elements.precision import FORMATS
from vario.core.text import number
from vario.runs.views.tensors.precision import FormatLoss, PrecisionTable, Range, TensorPrecision, lost, share_text

SCALED = ("e4m3", "e5m2")
"""Formats that are used with a scale per tensor."""


def render_precision(table: PrecisionTable, formats: Sequence[str], top: int | None = None) -> RenderableType:
    """Render the table; those that lose most first, in the last of the formats."""
    steps = ", ".join(f"{quantity} at step {step}" for quantity, step in table.steps.items())
    heading = Text("What lower precisions would lose", style="bold")
    chosen = sorted(table.tensors, key=lambda one: -worst(one, formats))
    shown = chosen if top is None else chosen[:top]
    lines = Table(box=None, pad_edge=False)
    for name in ("quantity", "tensor"):
        lines.add_column(name, no_wrap=True)
    for name in ("median", "largest"):
        lines.add_column(name, justify="right", no_wrap=True)
    for name in formats:
        lines.add_column(FORMATS[name].label)
        if name in SCALED:
            lines.add_column("scaled")
    for one in shown:
        cells = [Text(one.quantity), Text(one.target), _magnitude(one.median), _magnitude(one.largest)]
        for name in formats:
            cells.append(Text(_loss(one.as_is[name])))
            if name in SCALED:
                found = one.scaled[name]
                cells.append(Text(f"x 2^{found.scale}: {_loss(found)}" if one.num_elements else ""))
        lines.add_row(*cells)
    notes = [
        f"Read: {steps}. Shares are of the elements that are neither zero nor NaN or Inf; rounding to fewer digits "
        "within a format's range is not counted."
    ]
    if len(shown) < len(chosen):
        notes.append(f"{len(shown)} of {len(chosen)} tensors; --top N shows more, --json all of them.")
    return Group(heading, lines, *(Text(note, style="dim") for note in notes))


def worst(one: TensorPrecision, formats: Sequence[str]) -> float:
    """Return the largest share that a tensor loses in any of the formats, scaled where that is usual."""
    found = [lost((one.scaled if name in SCALED else one.as_is)[name]).low for name in formats]
    return max([share for share in found if share == share], default=0.0)


def _loss(found: FormatLoss) -> str:
    if found.flushed.low != found.flushed.low:
        return ""
    parts = [(found.flushed, "to zero"), (found.overflow, "too large")]
    texts = [f"{share_text(share)} {what}" for share, what in parts if share.high > 0]
    if not texts and found.subnormal.high > 0:
        return f"{share_text(found.subnormal)} lose digits"
    return ", ".join(texts) or "in range"


def _magnitude(found: Range) -> Text:
    if found.low != found.low:
        return Text("")
    return Text(number(found.low, 2) if found.is_exact else f"{number(found.low, 2)} to {number(found.high, 2)}")
