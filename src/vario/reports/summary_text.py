"""The report as terminal output."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vario.core.attachments import Attachment
from vario.core.text import duration, number, size, when
from vario.reports.machine_use import machine_facts
from vario.reports.movement import Jump
from vario.reports.ranks_text import ranks_in_trouble, ranks_text
from vario.reports.summary import Loss, RunSummary
from vario.reports.terminal_plot import sparkline
from vario.runs.findings.desync import Desync
from vario.runs.findings.diagnosis import Diagnosis
from vario.runs.findings.diagnosis_text import diagnosis_text, source_text
from vario.runs.findings.onset import Onset
from vario.runs.views.speed.throughput import throughput_lines

WIDTH = 100
"""Longer lines are hard to read, even in a wide terminal."""
STATE_STYLES = {"finished": "green", "running": "cyan", "crashed": "bold red"}
STATE_STYLES |= {"stalled": "yellow", "interrupted": "yellow"}
CHAIN_SHOWN = 4
ATTACHMENTS_SHOWN = 8
NOUNS = {
    "gradient_local": "local gradient",
    "gradient_applied": "applied gradient",
    "activation_gradient": "activation gradient",
    "moment": "optimizer state",
    "scalar": "logged number",
}
"""Quantities that people call by another name."""


def render(summary: RunSummary) -> RenderableType:
    """Render the report for rich."""
    blocks: list[RenderableType] = [_course(summary)]
    blocks.append(_verdict(summary))
    if summary.desync is not None:
        blocks.append(_disagreement(summary.desync))
    if summary.diagnosis.first is not None:
        blocks.append(_incidents(summary.diagnosis))
    is_stuck = summary.shipping is not None and summary.shipping.is_stuck
    if summary.parts_off or summary.unmerged or summary.dropped_steps or is_stuck:
        blocks.append(_shortcomings(summary))
    if summary.movers:
        blocks.append(_movers(summary))
    if summary.counts:
        blocks.append(_recorded(summary))
    if summary.attachments:
        blocks.append(_attachments(summary.attachments))
    if summary.not_offered:
        blocks.append(_not_offered(summary))
    spaced = [piece for block in blocks for piece in (block, Text())][:-1]
    return Panel(
        Group(*spaced), title=Text(summary.name, style="bold"), title_align="left", width=WIDTH, padding=(1, 2)
    )


def _course(summary: RunSummary) -> Table:
    table = Table.grid(padding=(0, 3))
    for name, text in _facts(summary):
        table.add_row(Text(name, style="dim"), text)
    return table


def _facts(summary: RunSummary) -> Iterator[tuple[str, Text]]:
    state = Text(summary.state, style=STATE_STYLES.get(summary.state, ""))
    if summary.error:
        state.append(f": {summary.error}", style="default")
    yield "state", state
    length = f"{summary.num_steps}"
    if summary.num_steps:
        length += f" ({summary.first_step} to {summary.last_step})"
    if summary.duration_seconds is not None:
        length += f" in {duration(summary.duration_seconds)}"
    yield "steps", Text(length)
    if summary.step_seconds is not None:
        yield "step time", Text(f"{duration(summary.step_seconds)} (median)")
    if summary.throughput is not None:
        for at, line in enumerate(throughput_lines(summary.throughput)):
            yield "" if at else "throughput", Text(line)
    if summary.linearity is not None:
        yield "linearity", Text(summary.linearity.text)
    if summary.time is not None:
        yield "speed", Text(summary.time.text)
        yield "", Text(summary.time.evidence, style="dim")
        yield "", Text(f"Next: {summary.time.advice}")
    for loss in [] if summary.loss is None else [summary.loss, *summary.part_losses]:
        yield from _loss(loss)
    if summary.clipping is not None:
        yield "clipping", Text(summary.clipping.text)
    if summary.noise_scale is not None:
        yield "noise scale", Text(summary.noise_scale.text)
    for at, line in enumerate([] if summary.precision is None else summary.precision.lines):
        yield "" if at else "precision", Text(line)
    if summary.channels:
        yield "channels", Text(summary.channels)
    if summary.cosines is not None:
        yield "cosines", Text(summary.cosines.text)
    if summary.experts is not None:
        yield "experts", Text(summary.experts.text)
    if summary.peak_memory_bytes:
        peaks = [f"{name.partition('_memory')[0]} {size(peak)}" for name, peak in summary.peak_memory_bytes.items()]
        yield "peak memory", Text(", ".join(peaks))
    for name, words in [] if summary.machine is None else machine_facts(summary.machine):
        yield name, Text(words)
    if summary.predicted_peak_bytes is not None:
        yield "predicted", Text(_prediction(summary.predicted_peak_bytes, summary.peak_memory_bytes))
    if summary.overhead is not None:
        yield "overhead", Text(summary.overhead.text)
    if summary.skipped_steps:
        yield "skipped", Text(f"{_plural(summary.skipped_steps, 'step')} skipped by the loss scaler")
    if summary.world_size > 1:
        yield "ranks", Text(ranks_text(summary))
        if trouble := ranks_in_trouble(summary.rank_states):
            yield "", Text(trouble, style="yellow")
        if (verdict := summary.diagnosis.rank_verdict) is not None:
            yield "", Text(verdict.text, style="yellow" if verdict.kind == "slow" else "")


def _loss(loss: Loss) -> Iterator[tuple[str, Text]]:
    lowest = f", lowest {number(loss.lowest)} at step {loss.lowest_step}" if loss.lowest is not None else ""
    text = Text(f"first {number(loss.first)}, last {number(loss.last)}{lowest}")
    if loss.is_found:
        text.append(" (found by vario)", style="dim")
    yield f"loss {loss.part}".rstrip(), text
    yield "", Text(sparkline(loss.values, width=70, height=3), style="cyan")


def _prediction(predicted: float, measured: dict[str, float]) -> str:
    """Compare the predicted peak of device memory with the measured one."""
    peaks = [peak for name, peak in measured.items() if name.startswith("device_memory_peak_bytes")]
    if not peaks:
        return f"{size(predicted)} on a GPU; this run used no GPU"
    off = predicted / max(peaks) - 1
    return f"{size(predicted)}, measured {size(max(peaks))} ({off:+.1%})"


def _verdict(summary: RunSummary) -> RenderableType:
    if summary.first_bad is None:
        num_tensors = sum(count.num_targets for count in summary.counts if count.quantity != "scalar")
        num_numbers = sum(count.num_targets for count in summary.counts if count.quantity == "scalar")
        if not num_tensors and not num_numbers:
            return Text("Nothing recorded yet.", style="yellow")
        found = f"{num_tensors:,} recorded tensors" if num_tensors else f"{_plural(num_numbers, 'plain number')}"
        finding = f"o NaN or Inf in {found}."
        is_well = summary.state in ("finished", "running", "interrupted") and summary.diagnosis.first is None
        return Text(f"Healthy: n{finding}" if is_well else f"N{finding}", style="bold green" if is_well else "")
    onset = summary.first_bad
    heading = Text(f"First NaN or Inf: {onset.target} ({NOUNS.get(onset.quantity, onset.quantity)})", style="bold red")
    paragraphs = [Text(sentence) for sentence in onset_sentences(onset, summary.jump)]
    return Group(heading, *(Padding(paragraph, (0, 0, 0, 2)) for paragraph in paragraphs))


def _disagreement(desync: Desync) -> RenderableType:
    odd, others = desync.ranks, [rank for rank in desync.checksums if rank not in desync.ranks]
    sides = f"rank {', '.join(map(str, odd))} and rank {', '.join(map(str, others))}"
    heading = Text(f"Ranks out of sync: {desync.target} ({desync.quantity})", style="bold red")
    sentence = f"Since step {desync.step} {sides} differ, although they should be identical."
    return Group(heading, Padding(Text(sentence), (0, 0, 0, 2)))


def _incidents(diagnosis: Diagnosis) -> RenderableType:
    count = len(diagnosis.incidents)
    heading = Text(f"Root cause ({_plural(count, 'incident')})", style="bold yellow")
    lines = [Padding(Text(diagnosis_text(diagnosis)), (0, 0, 0, 2))]
    how = source_text(diagnosis)
    lines.append(Padding(Text(how, style="dim"), (0, 0, 0, 2)))
    if count > 1:
        lines.append(Padding(Text(f"{count - 1} more: `vario check` lists them."), (0, 0, 0, 2)))
    return Group(heading, *lines)


def onset_sentences(onset: Onset, jump: Jump | None) -> Iterator[str]:
    """Yield a paragraph each: where it first appeared, the state before, a possible cause, and what followed."""
    where = f"At step {onset.step} (micro-step {onset.micro_step}, rank {onset.rank})"
    if onset.quantity == "scalar":
        yield f"{where} this number was not finite, and every tensor recorded before it was.{_usual(onset)}"
    else:
        yield f"{where} {_counted(onset)}.{_usual(onset)}"
    if onset.inputs_were_finite:
        yield "The inputs of that module were finite: it happened inside."
    elif onset.inputs_were_finite is False:
        yield "The inputs of that module were not finite either."
    if jump is not None:
        times = number(jump.after / jump.before, 2)
        yield (
            f"Look at {jump.target} ({NOUNS.get(jump.quantity, jump.quantity)}): earlier in the same step, its "
            f"largest magnitude went from {number(jump.before, 3)} to {number(jump.after, 3)}, {times} times as large."
        )
    if onset.chain:
        more = ", and more" if len(onset.chain) > CHAIN_SHOWN else ""
        yield f"Followed by {', '.join(_followers(onset))}{more}."


def _counted(onset: Onset) -> str:
    kinds = [f"{count:,} {kind}" for count, kind in ((onset.nans, "NaN"), (onset.infs, "Inf")) if count]
    return f"it contained {' and '.join(kinds)} in {_plural(onset.count, 'element')}"


def _followers(onset: Onset) -> Iterator[str]:
    """The next tensors with a NaN or Inf; with quantity and step where they change."""
    quantity, step = onset.quantity, onset.step
    for row in onset.chain[:CHAIN_SHOWN]:
        remarks = [NOUNS.get(row.quantity, row.quantity)] if row.quantity != quantity else []
        remarks += [f"step {row.step}"] if row.step != step else []
        yield f"{row.target} ({', '.join(remarks)})" if remarks else row.target
        quantity, step = row.quantity, row.step


def _usual(onset: Onset) -> str:
    usual = onset.usual
    if usual is None:
        return " No earlier recorded step of it was healthy."
    known = [
        f"{name} {number(value, 3)}"
        for name, value in (("norm", usual.norm), ("largest magnitude", usual.absmax))
        if value is not None
    ]
    return f" At step {usual.step} it was healthy{': ' if known else ''}{', '.join(known)}."


def _shortcomings(summary: RunSummary) -> RenderableType:
    lines = [Text("Missing from this run", style="bold yellow")]
    for part in summary.parts_off:
        step = "before the first step" if part.step is None else f"at step {part.step}"
        lines.append(Text(f"  {part.part} was switched off {step} on rank {part.rank}: {part.error}"))
    lines += [Text(f"  {found.text}") for found in summary.unmerged]
    if summary.dropped_steps:
        lines.append(Text(f"  {_plural(summary.dropped_steps, 'step')} dropped: they could not be written"))
    if (copy := summary.shipping) is not None and copy.is_stuck:
        since = "" if copy.since is None else f" since {when(copy.since)}"
        lines.append(Text(f"  not completely at {copy.target}{since}: {copy.error}"))
    return Group(*lines)


def _movers(summary: RunSummary) -> RenderableType:
    quantity = summary.movers[0].quantity
    heading = Text(f"Largest changes ({quantity} norm, first to last tenth", style="bold")
    heading.append(", before the first NaN or Inf)" if summary.first_bad is not None else ")")
    table = Table.grid(padding=(0, 3))
    for mover in summary.movers:
        change = f"x {number(mover.ratio, 3)}"
        table.add_row(Text(f"  {mover.target}"), f"{number(mover.before, 3)} → {number(mover.after, 3)}", change)
    return Group(heading, table)


def _recorded(summary: RunSummary) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    for count in summary.counts:
        table.add_row(
            Text(f"  {count.quantity}"), _plural(count.num_targets, "target"), _plural(count.num_steps, "step")
        )
    return Group(Text("Recorded", style="bold"), table)


def _attachments(attachments: list[Attachment]) -> RenderableType:
    """The latest of each name."""
    latest = {(found.kind, found.name): found for found in attachments}
    table = Table.grid(padding=(0, 3))
    for found in list(latest.values())[:ATTACHMENTS_SHOWN]:
        table.add_row(Text(f"  {found.name}"), found.kind, f"step {found.step}", size(found.num_bytes))
    if len(latest) > ATTACHMENTS_SHOWN:
        table.add_row(Text(f"  and {len(latest) - ATTACHMENTS_SHOWN} more", style="dim"))
    return Group(Text("Figures and tables", style="bold"), table)


def _not_offered(summary: RunSummary) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    for found in summary.not_offered:
        table.add_row(Text(f"  {found.quantity}"), Text(f"needs {found.missing}"))
    return Group(Text("Not offered for this framework", style="bold"), table)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
