"""`vario ls` with chosen columns: a table of runs, as text, CSV or JSON."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vario.cli import output
from vario.core.text import duration, number, size, when

if TYPE_CHECKING:
    from vario.runs.table.columns import Column, Value
    from vario.runs.table.effects import Effect
    from vario.runs.table.summary import RunSummary
    from vario.runs.table.table import Table


def print_table(arguments: argparse.Namespace, directory: Path) -> int:
    """Print the runs of a folder as `vario ls` was asked to."""
    from vario.runs.table.table import USUAL, check_sort, make_table, rows_json

    runs = [run for run in read_runs(directory) if arguments.all or not run.note.is_archived]
    if not runs and not (arguments.json or arguments.csv):
        output.stderr().print(f"No runs in {directory} or its subfolders.", markup=False)
        return 0
    if arguments.effects:
        return _print_effects(runs, arguments)
    keys = [key.strip() for key in arguments.columns.split(",") if key.strip()] if arguments.columns else list(USUAL)
    keys = [key for key in keys if key not in ("name", "run")]
    table = make_table(runs, keys, arguments.where, check_sort(arguments.sort), arguments.group_by)
    if arguments.json:
        output.print_json(_grouped_json(table) if arguments.group_by else rows_json(table))
    elif arguments.csv:
        _print_csv(table)
    else:
        _print_text(table, arguments.group_by)
    return 0


def _print_effects(runs: list[RunSummary], arguments: argparse.Namespace) -> int:
    """Print which settings go along with a result, most first."""
    from rich.table import Table as Grid
    from rich.text import Text

    from vario.runs.table.columns import Columns
    from vario.runs.table.effects import find_effects
    from vario.runs.table.table import select

    columns = Columns(runs)
    found = find_effects(select(runs, columns, arguments.where), columns, arguments.effects)
    if arguments.json:
        output.print_json(
            [
                {"setting": effect.setting.key, "importance": effect.importance, **_figures(effect)}
                for effect in found.effects
            ]
        )
        return 0
    grid = Grid("setting", "importance", "what", "changes with", box=None, pad_edge=False)
    for effect in found.effects:
        same = Text(", ".join(effect.same_as))
        grid.add_row(Text(effect.setting.key), f"{effect.importance:.2f}", Text(effect.text), same)
    output.stdout().print(grid)
    if not found.effects:
        output.stdout().print(f"The {len(found.runs)} runs with it differ in no setting.", markup=False)
    return 0


def _figures(effect: Effect) -> dict[str, Any]:
    means = [{"value": value, "mean": mean, "runs": runs} for value, mean, runs in effect.means]
    return {
        "runs": effect.num_runs,
        "correlation": effect.correlation,
        "linear": effect.linear,
        "share": effect.share,
        "means": means,
        "same_as": effect.same_as,
        "text": effect.text,
    }


def read_runs(directory: Path) -> list[RunSummary]:
    """Read a summary of each run in a folder, oldest first; skips one that cannot be read, with a warning."""
    import logging
    from dataclasses import replace
    from functools import partial

    from vario.core.errors import RunError
    from vario.runs.files.run_paths import runs_below
    from vario.runs.files.status import is_run
    from vario.runs.notes.notes import note_of, read_notes
    from vario.runs.table.summary_file import SummaryFile

    found = []
    notes: dict[Path, Any] = {}
    stored = SummaryFile(directory)
    for folder in [directory] if is_run(directory) else runs_below(directory):
        label = str(folder.relative_to(directory)) if folder != directory else folder.resolve().name
        try:
            summary = stored.read(label, label, folder, partial(read_run, folder, label))
            above = folder.resolve().parent
            if above not in notes:
                notes[above] = read_notes(above)
            found.append(replace(summary, note=note_of(notes[above], summary.name, summary.id)))
        except RunError as error:
            logging.getLogger("vario").warning("skipped: %s", error)
    stored.save([summary.run for summary in found])
    return sorted(found, key=lambda run: run.brief.started)


def read_run(folder: Path, label: str) -> RunSummary:
    """Read the summary of one run."""
    from vario.runs.run import Run
    from vario.runs.table.summary import read_summary

    return read_summary(Run(folder), label)


def _grouped_json(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [
        {
            "value": group.value,
            "runs": group.runs,
            "columns": {
                key: {"mean": mean, "low": low, "high": high}
                for key, mean, low, high in zip(keys, group.means, group.lows, group.highs, strict=True)
            },
        }
        for group in table.groups
    ]


def _print_csv(table: Table) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if table.groups:
        writer.writerow(["group", "runs", *(f"mean {column.key}" for column in table.columns)])
        writer.writerows([group.value, group.runs, *group.means] for group in table.groups)
        return
    writer.writerow(["run", *(column.key for column in table.columns)])
    writer.writerows([row.run, *row.values] for row in table.rows)


def _print_text(table: Table, group_by: str) -> None:
    from rich.markup import escape
    from rich.table import Table as Grid
    from rich.text import Text

    first = [group_by, "runs"] if group_by else ["run"]
    grid = Grid(*map(escape, [*first, *(column.key for column in table.columns)]), box=None, pad_edge=False)
    if group_by:
        for group in table.groups:
            ranges = zip(table.columns, group.means, group.lows, group.highs, strict=True)
            grid.add_row(Text(group.value), str(group.runs), *(_range(*each) for each in ranges))
    else:
        for row in table.rows:
            cells = [Text(cell(column, value)) for column, value in zip(table.columns, row.values, strict=True)]
            grid.add_row(Text(row.run), *cells)
    output.stdout().print(grid)
    if len(table.rows) < table.total:
        output.stdout().print(f"{len(table.rows)} of {table.total} runs", style="dim", markup=False)


def _range(column: Column, mean: float | None, low: float | None, high: float | None) -> str:
    if mean is None:
        return "-"
    text = cell(column, mean)
    return text if low == high else f"{text} ({cell(column, low)} to {cell(column, high)})"


def cell(column: Column, value: Value) -> str:
    """Return a value as text, with its unit."""
    if value is None:
        return "-"
    if isinstance(value, (str, bool)):
        return str(value)
    if column.kind == "time":
        return when(value)
    if column.kind == "seconds":
        return duration(value)
    if column.kind == "bytes":
        return size(value)
    if column.kind == "share":
        return f"{100 * value:.0f} %"
    return number(float(value))
