"""The largest channels of weights and activations, as terminal output."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.core.text import number
from vario.runs.views.tensors.channels import TensorChannels

NAMED = 4
"""Channels that are named in a line."""


def render_channels(tensors: Sequence[TensorChannels], top: int) -> RenderableType:
    """Render the table, the most uneven tensors first."""
    if not tensors:
        return Text("no such channels were recorded")
    chosen = sorted(tensors, key=lambda one: -one.peak if one.peak == one.peak else 0.0)
    table = Table(box=None, pad_edge=False)
    table.add_column("tensor", no_wrap=True)
    for name in ("channels", "dead", "largest / mean", "in 1", "in 8"):
        table.add_column(name, justify="right")
    table.add_column("largest channels")
    for one in chosen[:top]:
        named = ", ".join(f"{channel.index} ({number(channel.absmax, 3)})" for channel in one.top[:NAMED])
        table.add_row(
            Text(one.target),
            f"{one.num_channels:,} {one.kind}",
            f"{one.num_dead:,}" if one.num_dead else "",
            number(one.peak, 3),
            _percent(one.share),
            _percent(one.top_share),
            Text(named),
        )
    notes = [f"Step {chosen[0].step}. In 1, in 8: the share of the tensor's squares in its largest channels."]
    if len(chosen) > top:
        notes.append(f"{top} of {len(chosen)} tensors; --top N shows more.")
    return Group(Text("Channels", style="bold"), table, *(Text(note, style="dim") for note in notes))


def _percent(share: float) -> str:
    return "" if share != share else f"{100 * share:.2g} %"
