"""A comparison as terminal output."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.core.text import number
from vario.reports.progress_compare import Comparison
from vario.reports.progress_words import Language, say, say_note

MANY_LINES = 4


def render_comparison(comparison: Comparison, language: Language) -> RenderableType:
    """Render the comparison for rich."""
    blocks: list[RenderableType] = [_entries(comparison, language)]
    blocks += [Text(line) for line in finding_lines(comparison, language)]
    if comparison.differences:
        blocks.append(Text())
        blocks.append(Text(say(language, "compare_table"), style="bold"))
        blocks.append(_differences(comparison, language))
    return Group(*blocks)


def finding_lines(comparison: Comparison, language: Language) -> Iterator[str]:
    """Describe how the entries relate to each other."""
    steps = {entry.name: entry.step for entry in comparison.entries}
    for entry in comparison.entries:
        if entry.part_of is not None:
            is_equal = entry.step == steps[entry.part_of]
            about = {"name": entry.name, "longer": entry.part_of}
            yield say_note(language, "equal_to" if is_equal else "same_as", about)
    if len(comparison.lines) < 2:
        if len(set(steps.values())) > 1:
            yield say(language, "compare_same")
        return
    if comparison.axis is None:
        yield say(language, "compare_no_overlap")
    elif comparison.axis == "epoch":
        yield say(language, "compare_by_epoch")
    elif comparison.same_until is not None and comparison.differ_from is not None:
        yield say(language, "compare_until", step=comparison.same_until, next=comparison.differ_from)
    elif comparison.differ_from is not None:
        yield say(language, "compare_apart")
    else:
        yield say(language, "compare_equal")


def _entries(comparison: Comparison, language: Language) -> RenderableType:
    has_evaluation = any(entry.eval_loss is not None for entry in comparison.entries)
    table = Table("", box=None, pad_edge=False)
    names = [say(language, key) for key in ("plot_step", "plot_epoch", "compare_loss", "change", "lowest")]
    names += ["eval_loss"] if has_evaluation else []
    names += [say(language, key) for key in ("learning_rate", "grad_norm")]
    for name in names:
        table.add_column(name, justify="right")
    first = comparison.entries[0]
    for entry in comparison.entries:
        change = None if entry.loss is None or first.loss is None else entry.loss - first.loss
        cells = [
            "-" if entry.step is None else str(entry.step),
            "-" if entry.epoch is None else f"{entry.epoch:.2f}",
            number(entry.loss),
            "" if entry is first else _signed(change),
            number(entry.lowest_loss),
        ]
        cells += [number(entry.eval_loss)] if has_evaluation else []
        table.add_row(Text(entry.name, style="bold"), *cells, number(entry.learning_rate), number(entry.grad_norm))
    return table


def _signed(difference: float | None) -> str:
    return "-" if difference is None or not isfinite(difference) else f"{difference:+.4g}"


def _differences(comparison: Comparison, language: Language) -> RenderableType:
    return _wide(comparison, language) if len(comparison.lines) <= MANY_LINES else _high(comparison, language)


def _high(comparison: Comparison, language: Language) -> RenderableType:
    """Many lines: one row per line, one column per step or epoch."""
    table = Table(say(language, f"plot_{comparison.axis}"), box=None, pad_edge=False)
    for place in comparison.differences:
        table.add_column(number(place.at), justify="right")
    for index, name in enumerate(comparison.lines):
        table.add_row(Text(name), *(number(place.losses[index]) for place in comparison.differences))
    return table


def _wide(comparison: Comparison, language: Language) -> RenderableType:
    """Few lines: one row per step or epoch, one column per line and its difference from the first."""
    table = Table(say(language, f"plot_{comparison.axis}"), box=None, pad_edge=False)
    for index, name in enumerate(comparison.lines):
        table.add_column(Text(name), justify="right")
        if index:
            table.add_column(say(language, "difference"), justify="right")
    for row in comparison.differences:
        cells = []
        for index, (loss, difference) in enumerate(zip(row.losses, row.differences, strict=True)):
            cells.append(number(loss))
            if index:
                cells.append(_signed(difference))
        table.add_row(number(row.at), *cells)
    return table
