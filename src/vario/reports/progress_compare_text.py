"""A comparison as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vario.reports.progress_compare import Comparison
from vario.reports.progress_words import Language, say, say_note
from vario.text import number


def render_comparison(comparison: Comparison, language: Language) -> RenderableType:
    """The comparison, as something rich can print."""
    blocks: list[RenderableType] = [_entries(comparison, language)]
    blocks += [Text(line) for line in finding_lines(comparison, language)]
    if comparison.differences:
        blocks.append(Text())
        blocks.append(Text(say(language, "compare_table"), style="bold"))
        blocks.append(_differences(comparison, language))
    return Group(*blocks)


def finding_lines(comparison: Comparison, language: Language) -> Iterator[str]:
    """How the entries belong together."""
    for entry in comparison.entries:
        if entry.part_of is not None:
            yield say_note(language, "same_as", {"name": entry.name, "longer": entry.part_of})
    if len(comparison.lines) < 2:
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
        change = "" if entry is first or entry.loss is None or first.loss is None else f"{entry.loss - first.loss:+.4g}"
        cells = [
            "-" if entry.step is None else str(entry.step),
            "-" if entry.epoch is None else f"{entry.epoch:.2f}",
            number(entry.loss),
            change,
            number(entry.lowest_loss),
        ]
        cells += [number(entry.eval_loss)] if has_evaluation else []
        table.add_row(Text(entry.name, style="bold"), *cells, number(entry.learning_rate), number(entry.grad_norm))
    return table


def _differences(comparison: Comparison, language: Language) -> RenderableType:
    table = Table(say(language, f"plot_{comparison.axis}"), box=None, pad_edge=False)
    for index, name in enumerate(comparison.lines):
        table.add_column(name, justify="right")
        if index:
            table.add_column(say(language, "difference"), justify="right")
    for row in comparison.differences:
        cells = []
        for index, (loss, difference) in enumerate(zip(row.losses, row.differences, strict=True)):
            cells.append(number(loss))
            if index:
                cells.append("-" if difference is None else f"{difference:+.4g}")
        table.add_row(number(row.at), *cells)
    return table
