"""Training status as terminal output."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vario.core.text import number
from vario.logs.history import History
from vario.reports.progress import Break, Course, ProgressSummary, Speed, shown_loss
from vario.reports.progress_words import WORDS, Language, say, say_duration, say_note
from vario.reports.terminal_plot import sparkline

WIDTH = 100
BAR_WIDTH = 24
OTHERS_SHOWN = 12

Line = tuple[str, str]


def render_progress(history: History, summary: ProgressSummary, language: Language) -> RenderableType:
    """Render the summary for rich."""
    blocks: list[RenderableType] = []
    if verdict := list(verdict_lines(summary, language)):
        blocks.append(Text("\n".join(verdict), style="bold red" if _is_bad(summary) else "yellow"))
    blocks.append(_block(say(language, "progress"), _progress(summary, language)))
    loss = _block(say(language, "loss"), _loss(summary, language))
    curve = sparkline(shown_loss(history).values, width=70, height=3)
    blocks.append(
        Group(loss, Text("\n".join(f"  {line}" for line in curve.splitlines()), style="cyan")) if curve else loss
    )
    blocks.append(_block(say(language, "values"), _values(summary, language)))
    if summary.evaluation or summary.best:
        blocks.append(_evaluation(summary, language))
    if summary.others:
        blocks.append(_block(say(language, "others"), _others(summary)))
    if times := list(_times(summary, language)):
        blocks.append(_block(say(language, "time"), times))
    if summary.notes:
        notes = [say_note(language, note.kind, note.about) for note in summary.notes]
        blocks.append(Group(Text(say(language, "notes"), style="bold yellow"), *(Text(f"  {note}") for note in notes)))
    spaced = [piece for block in blocks for piece in (block, Text())][:-1]
    title = Text(f"{summary.path}", style="bold", overflow="ellipsis").append(f"  {summary.format}", style="dim")
    return Panel(Group(*spaced), title=title, title_align="left", width=WIDTH, padding=(1, 2))


def verdict_lines(summary: ProgressSummary, language: Language) -> Iterator[str]:
    """Describe what is wrong with the run, if anything."""
    if summary.broken is not None:
        yield _break(summary.broken, language)
        if summary.broken.is_hidden and summary.broken.is_lasting:
            yield say(language, "hidden")
        if summary.broken.previous_step is not None and summary.broken.step - summary.broken.previous_step > 1:
            yield say(language, "between", previous=summary.broken.previous_step)
    if summary.zero_loss_since is not None:
        yield say(language, "zero_loss", step=summary.zero_loss_since)


def _is_bad(summary: ProgressSummary) -> bool:
    return summary.broken is not None and summary.broken.is_lasting


def _break(broken: Break, language: Language) -> str:
    key = "broken" if broken.is_lasting else "shaken"
    return say(language, key, name=broken.name, value=number(broken.value), step=broken.step, count=broken.num_rows)


def _block(heading: str, lines: list[Line] | Iterator[Line]) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    for name, text in lines:
        table.add_row(Text(f"  {name}", style="dim"), Text(text))
    return Group(Text(heading, style="bold"), table)


def _progress(summary: ProgressSummary, language: Language) -> Iterator[Line]:
    if summary.epoch is not None:
        whole = None if summary.num_epochs is None else number(summary.num_epochs)
        yield say(language, "epoch"), _share(f"{summary.epoch:.2f}", whole, summary.epoch_percent, language)
    if summary.step is not None:
        whole = None if summary.max_steps is None else str(summary.max_steps)
        yield say(language, "step"), _share(str(summary.step), whole, summary.step_percent, language)
    if summary.is_finished is not None:
        yield say(language, "state"), say(language, "finished" if summary.is_finished else "not_finished")


def _share(part: str, whole: str | None, percent: float | None, language: Language) -> str:
    if whole is None or percent is None:
        return part
    filled = min(BAR_WIDTH, max(0, int(percent / 100 * BAR_WIDTH)))
    counted = say(language, "part_of", part=part, whole=whole)
    return f"{counted:<16}  {'█' * filled}{'░' * (BAR_WIDTH - filled)}  {percent:.2f} %"


def _loss(summary: ProgressSummary, language: Language) -> Iterator[Line]:
    loss = summary.loss
    if loss is None:
        yield "", say(language, "no_loss")
        return
    current = say(language, "at_step", value=number(loss.last), step=loss.last_step)
    is_hidden = summary.broken is not None and summary.broken.is_hidden and summary.broken.is_lasting
    yield say(language, "current"), say(language, "untrusted", value=current) if is_hidden else current
    if loss.lowest is not None and loss.highest is not None and loss.mean is not None:
        yield say(language, "lowest"), say(language, "at_step", value=number(loss.lowest), step=loss.lowest_step)
        yield say(language, "highest"), say(language, "at_step", value=number(loss.highest), step=loss.highest_step)
        yield say(language, "mean"), number(loss.mean)
    yield say(language, "trend"), trend_text(summary, language)


def trend_text(summary: ProgressSummary, language: Language) -> str:
    """Describe the trend of the loss, with the confidence interval of its slope."""
    trend = summary.trend
    if trend is None:
        return say(language, "no_trend_broken" if _is_bad(summary) else "no_trend")
    return say(
        language,
        "slope",
        direction=say(language, trend.direction),
        slope=f"{trend.slope_per_step:+.2g}",
        low=f"{trend.low:+.2g}",
        high=f"{trend.high:+.2g}",
        first=trend.first_step,
        last=trend.last_step,
    )


def _values(summary: ProgressSummary, language: Language) -> Iterator[Line]:
    yield say(language, "learning_rate"), _value(summary.learning_rate, language)
    yield say(language, "grad_norm"), _value(summary.grad_norm, language, with_highest=True)
    if summary.max_steps is not None:
        yield say(language, "total_steps"), str(summary.max_steps)
    if summary.num_epochs is not None:
        yield say(language, "total_epochs"), number(summary.num_epochs)


def _value(course: Course | None, language: Language, with_highest: bool = False) -> str:
    if course is None:
        return say(language, "not_logged")
    last = number(course.last)
    if not with_highest or course.highest is None or course.count < 2:
        return last
    return say(language, "highest_was", value=last, highest=number(course.highest), step=course.highest_step)


def _evaluation(summary: ProgressSummary, language: Language) -> RenderableType:
    pieces: list[RenderableType] = [Text(say(language, "evaluation"), style="bold")]
    table = Table.grid(padding=(0, 3))
    for found in summary.evaluation:
        last = say(language, "at_step", value=number(found.last), step=found.last_step)
        best = ""
        if found.best is not None:
            shown = say(language, "at_step", value=number(found.best), step=found.best_step)
            best = f"{say(language, 'best')} {shown}"
        table.add_row(Text(f"  {found.name}", style="dim"), last, best)
    if summary.evaluation:
        pieces.append(table)
    if summary.best is not None:
        checkpoint, value, step = summary.best.checkpoint, summary.best.value, summary.best.step
        named = "  ".join(part for part in (checkpoint, None if value is None else number(value)) if part)
        line = named if step is None else say(language, "at_step", value=named, step=step)
        row = Table.grid(padding=(0, 3))
        row.add_row(Text(f"  {say(language, 'best_checkpoint')}", style="dim"), Text(line))
        pieces.append(row)
    return Group(*pieces)


def _others(summary: ProgressSummary) -> Iterator[Line]:
    shown = list(summary.others.items())
    for name, value in shown[:OTHERS_SHOWN]:
        yield name, number(value)
    if len(shown) > OTHERS_SHOWN:
        yield "...", f"+ {len(shown) - OTHERS_SHOWN}"


def _times(summary: ProgressSummary, language: Language) -> Iterator[Line]:
    if summary.written is not None and summary.age_seconds is not None:
        moment = datetime.fromtimestamp(summary.written).strftime("%Y-%m-%d %H:%M:%S")
        yield (
            say(language, "written"),
            say(language, "ago", moment=moment, age=say_duration(language, summary.age_seconds)),
        )
    if summary.runtime_seconds is not None:
        yield say(language, "runtime"), say_duration(language, summary.runtime_seconds)
    if summary.speed is not None:
        yield say(language, "speed"), speed_text(summary.speed, language)
        if summary.speed.remaining_seconds is not None:
            remaining = say_duration(language, summary.speed.remaining_seconds)
            yield say(language, "remaining"), say(language, "about", time=remaining)


def speed_text(speed: Speed, language: Language) -> str:
    """Describe the speed and where it comes from."""
    seconds = say_duration(language, speed.seconds_per_step)
    rate = number(1 / speed.seconds_per_step, 3)
    return say(language, "speed_is", seconds=seconds, rate=rate, source=WORDS[language].get(speed.source, speed.source))
