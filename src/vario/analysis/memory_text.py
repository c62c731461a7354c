"""A memory prediction as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vario.analysis.memory import LargeTensors, MemoryPrediction
from vario.core.text import size

BAR = 30
COLOURS = {
    "weights": "blue",
    "gradients": "magenta",
    "optimizer": "cyan",
    "activations": "yellow",
    "temporary": "bright_black",
}
NUM_SHOWN = 6
NUM_BOUNDS = 3


def prediction_panel(prediction: MemoryPrediction, title: str, largest_batch: tuple[str, str] | None = None) -> Panel:
    """Render the output of `vario memory`."""
    blocks: list[RenderableType] = [_facts(prediction, largest_batch), _kinds(prediction), _largest(prediction)]
    blocks += [Text(note, style="dim") for note in (*_bound(prediction), *prediction.notes)]
    spaced = [piece for block in blocks for piece in (block, Text())][:-1]
    return Panel(Group(*spaced), title=Text(title, style="bold"), title_align="left", width=100, padding=(1, 2))


def _bound(prediction: MemoryPrediction) -> Iterator[str]:
    if prediction.is_upper_bound:
        shown = ", ".join(prediction.bounds[:NUM_BOUNDS])
        more = f" and {len(prediction.bounds) - NUM_BOUNDS} more" if len(prediction.bounds) > NUM_BOUNDS else ""
        yield f"This is an upper bound: some sizes depend on values, so the largest possible are used ({shown}{more})."


def _facts(prediction: MemoryPrediction, largest_batch: tuple[str, str] | None) -> Table:
    table = Table.grid(padding=(0, 3))
    for name, text in _fact_rows(prediction, largest_batch):
        table.add_row(Text(name, style="dim"), text)
    return table


def _fact_rows(prediction: MemoryPrediction, largest_batch: tuple[str, str] | None) -> Iterator[tuple[str, Text]]:
    each = f" on each of {prediction.gpus} GPUs ({prediction.strategy})" if prediction.gpus > 1 else ""
    most = "at most " if prediction.is_upper_bound else ""
    peak, reserved = size(prediction.peak_bytes), size(prediction.reserved_bytes)
    yield "peak", Text(f"{most}{peak} allocated, {reserved} reserved{each}")
    place = prediction.module or "the model itself"
    yield "reached", Text(f"in the {prediction.phase} pass" if prediction.phase != "optimizer" else "in the optimizer")
    if prediction.phase != "optimizer":
        yield "", Text(f"at {place}: {prediction.operator.removeprefix('_')}")
    by_phase = ", ".join(f"{phase} {size(peak)}" for phase, peak in prediction.phase_peaks.items())
    yield "by phase", Text(by_phase)
    fits = prediction.fits(prediction.gpu_bytes)
    verdict = Text("fits", style="bold green") if fits else Text("does not fit", style="bold red")
    room, own = size(prediction.gpu_bytes), size(prediction.context_bytes)
    verdict.append(f" into one {prediction.gpu} ({room}), including {own} for CUDA itself", style="not bold default")
    yield "verdict", verdict
    if largest_batch is not None:
        number, budget = largest_batch
        yield "largest batch", Text(f"{number} in {budget}" if number else f"not even 1 fits into {budget}")


def _kinds(prediction: MemoryPrediction) -> Table:
    table = Table(title="At the peak", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for heading in ("kind", "size", "share", ""):
        table.add_column(heading, justify="right" if heading in ("size", "share") else "left", header_style="dim")
    for kind, num_bytes in prediction.kinds.items():
        share = num_bytes / max(prediction.peak_bytes, 1)
        bar = Text("█" * round(share * BAR), style=COLOURS.get(kind, ""))
        table.add_row(kind, size(num_bytes), f"{share:.0%}", bar)
    return table


def _largest(prediction: MemoryPrediction) -> Table:
    table = Table(
        title="Largest tensors at the peak", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    table.add_column("size", justify="right", header_style="dim")
    for heading in ("tensor", "created by"):
        table.add_column(heading, header_style="dim")
    for large in prediction.largest[:NUM_SHOWN]:
        table.add_row(size(large.num_bytes), _what(large), _maker(large))
    return table


def _what(large: LargeTensors) -> str:
    shape = " x ".join(map(str, large.shape)) or "one number"
    return f"{large.count} x {large.dtype} ({shape})" if large.count > 1 else f"{large.dtype} ({shape})"


def _maker(large: LargeTensors) -> str:
    if large.kind in ("weights", "optimizer", "gradients"):
        return large.kind
    if large.kind == "workspace":
        return large.maker
    return f"{large.module or 'the model itself'}: {large.maker.removeprefix('_')}"
