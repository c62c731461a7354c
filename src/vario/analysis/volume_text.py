"""A prediction of a run's volume as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.analysis.volume import QuantityVolume, VolumePlan
from vario.core.text import size


def render_volume(plan: VolumePlan) -> RenderableType:
    """Render the output of `vario plan`."""
    has_others = plan.ranks > 1 and plan.strategy == "ddp"
    blocks: list[RenderableType] = [_quantities(plan.leading, "rank 0" if plan.ranks > 1 else "")]
    if has_others:
        blocks += [Text(), _quantities(plan.other, "each other rank")]
    blocks += [Text(), _totals(plan, has_others), Text(), Text(_cost(plan))]
    blocks += [Text(note, style="dim") for note in plan.notes]
    return Group(*blocks)


def _quantities(found: list[QuantityVolume], title: str) -> Table:
    table = Table("quantity", box=None, pad_edge=False, title=title or None, title_justify="left")
    for name in ("rows", "every", "rows per step", "whole run", "every row kept"):
        table.add_column(name, justify="right")
    for one in found:
        numbers = (
            f"{one.rows:,.0f}",
            str(one.every),
            f"{one.rows_per_step:,.1f}",
            size(one.bytes),
            size(one.all_bytes),
        )
        table.add_row(one.quantity, *numbers)
    return table


def _totals(plan: VolumePlan, has_others: bool) -> Table:
    table = Table("", box=None, pad_edge=False)
    for name in ("with tiers", "a day", "files", "every row kept", "a day", "files"):
        table.add_column(name, justify="right")
    ranks = {"rank 0": "leading", "each other rank": "other"} if has_others else {"each rank": "leading"}
    for title, rank in {**ranks, **({f"all {plan.ranks} ranks": "all"} if plan.ranks > 1 else {})}.items():
        cells = []
        for key, files in (("bytes", "files"), ("all_bytes", "all_files")):
            day = plan.bytes_a_day(key, rank)
            cells += [size(plan.total(key, rank)), "-" if day is None else size(day), f"{plan.total(files, rank):,.0f}"]
        table.add_row(title, *cells)
    return table


def _cost(plan: VolumePlan) -> str:
    writer, reading = plan.writer_seconds * 1e3, plan.reading_seconds * 1e3
    share = ""
    if plan.step_seconds is not None:
        share = f", {100 * plan.reading_seconds / plan.step_seconds:.2g} % of a step"
    else:
        share = "; add --step-seconds for bytes a day"
    return (
        f"{plan.rows_per_step:,.0f} rows per step. Estimated per step: {writer:.2g} ms of CPU in the background, and "
        f"{reading:.2g} ms to read the tensors at 2 TB/s{share}. The option overhead bounds what a step pays."
    )
