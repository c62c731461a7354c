"""List the runs in a folder and its subfolders, newest last.

Choose columns, sort and filter to compare many runs, such as those of a sweep. A column is a fact of a run (state,
started, duration, step, loss, alerts, memory, steps_per_second, ranks, host), a hyper-parameter (`lr`), or a logged
number (`val_loss`, its last value) and one figure of it: `val_loss:best`, `:last`, `:first`, `:min` or `:max`. A filter
joins conditions such as `lr > 0.001`, `state = finished` or `name ~ big` with `and`, `or`, `not` and parentheses.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.text import number, when

if TYPE_CHECKING:
    from vario.runs.run import Run

EXAMPLES = """
vario ls
vario ls other_runs
vario ls --json
vario ls --columns lr,width,val_loss:best --sort val_loss:best
vario ls sweep --where 'lr > 0.001 and state = finished' --csv
vario ls sweep --columns val_loss:best --group-by lr
vario ls sweep --effects val_loss:best
"""

MARK = "*"
"""Marks a loss that the script did not log."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the folder, what to show of which runs, and how."""
    shared.add_directory(parser, "folder with runs")
    parser.add_argument(
        "--all", action="store_true", help="list every run of a group, such as a grid search, and archived runs"
    )
    parser.add_argument("--columns", metavar="A,B", help="columns to show instead of the usual ones")
    parser.add_argument("--sort", metavar="A,B", default="", help="sort by columns; `A desc`: the highest first")
    parser.add_argument(
        "--where", metavar="FILTER", default="", help="only runs such as `lr > 0.1 and state = finished`"
    )
    parser.add_argument("--group-by", metavar="A", default="", help="one row for each value of a column, with means")
    parser.add_argument("--effects", metavar="A", default="", help="which settings go along with a column")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the runs."""
    from vario.runs.files.run_paths import runs_below
    from vario.runs.files.status import is_run

    directory = shared.local_folder(arguments.directory)
    asked = (arguments.columns, arguments.sort, arguments.where, arguments.group_by, arguments.effects)
    if any(asked) or arguments.csv:
        from vario.cli.run_table import print_table

        return print_table(arguments, directory)
    rows = [
        describe(found) for found in _shown(arguments.all, [directory] if is_run(directory) else runs_below(directory))
    ]
    if arguments.json:
        output.print_json(rows)
        return 0
    if not rows:
        output.stderr().print(f"No runs in {directory} or its subfolders.", markup=False)
        return 0

    from rich.table import Table

    are_deeper = any(row["path"].parent not in (directory, directory.parent) for row in rows)
    table = Table(
        *(["folder"] if are_deeper else []),
        *("name", "state", "started", "step", "last loss", "incidents", "ranks", "quantities"),
        box=None,
        pad_edge=False,
    )
    for row in rows if arguments.all else grouped(rows):
        started = when(row["started"])
        step = "-" if row["last_step"] is None else str(row["last_step"])
        cells = (
            started,
            step,
            row.get("losses") or number(row["loss"]) + (MARK if row["loss_is_found"] else ""),
            str(row["num_incidents"]),
            _ranks(row),
            ", ".join(row["quantities"]),
        )
        folder = [str(row["path"].parent.relative_to(directory))] if are_deeper else []
        table.add_row(*folder, row["name"], _state(row), *cells)
    output.stdout().print(table)
    if any(row["loss_is_found"] for row in rows):
        output.stdout().print(f"{MARK} found by vario, not logged by the script", style="dim", markup=False)
    return 0


def _shown(includes_archived: bool, folders: list[Path]) -> list[Run]:
    """The runs in these folders, without archived ones unless asked for."""
    from vario.runs.notes.notes import note_of, read_notes
    from vario.runs.run import runs_at

    notes = {above: read_notes(above) for above in {folder.resolve().parent for folder in folders}}
    found = runs_at(folders)
    if includes_archived:
        return found
    return [run for run in found if not note_of(notes[run.path.resolve().parent], run.name, run.id).is_archived]


def grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the runs that one process started one after another into one row, at the position of the first."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"] or row["path"], []).append(row)
    return [members[0] if len(members) == 1 else _as_one(members) for members in groups.values()]


def _as_one(members: list[dict[str, Any]]) -> dict[str, Any]:
    states = [row["state"] for row in members]
    losses = [row["loss"] for row in members if row["loss"] is not None]
    # A run that is active or failed matters more than the rest.
    first = (state for state in ("running", "stalled", "crashed", "interrupted") if state in states)
    return {
        **members[-1],
        "name": f"{members[0]['name']} ({len(members)} runs)",
        "started": members[0]["started"],
        "state": next(first, states[-1]),
        "losses": f"{number(min(losses))} to {number(max(losses))}" if losses else "",
        "num_incidents": sum(row["num_incidents"] for row in members),
    }


def _state(row: dict[str, Any]) -> str:
    """The state of a run; with several ranks, the one that failed first."""
    from vario.runs.files.rank_failures import first_failure

    first = first_failure(row["rank_states"]) if row["world_size"] > 1 and row["state"] == "crashed" else None
    return str(row["state"]) if first is None else f"{row['state']} (rank {first.rank})"


def _ranks(row: dict[str, Any]) -> str:
    recorded, hosts = len(row["ranks"]), {found.host for found in row["rank_states"]}
    text = str(recorded) if recorded == row["world_size"] else f"{recorded} of {row['world_size']}"
    return f"{text} on {len(hosts)} hosts" if len(hosts) > 1 else text


def describe(run: Run) -> dict[str, Any]:
    """Return the columns of one run."""
    from vario.runs.findings.check import known_incidents
    from vario.runs.views.status.losses import read_losses

    ranks = run.ranks
    quantities = run.quantities(ranks[0]) if ranks else []
    loss = read_losses(run)[:1]
    return {
        "path": run.path,
        "name": run.name,
        "id": run.id,
        "group": run.group,
        "state": run.state,
        "error": run.error,
        "started": run.started,
        "last_step": run.last_step,
        "loss": float(loss[0].values[-1]) if loss else None,
        "loss_is_found": bool(loss) and loss[0].is_found,
        "num_incidents": len(known_incidents(run)),
        "ranks": ranks,
        "world_size": run.world_size,
        "rank_states": run.rank_states,
        "quantities": [name for name in quantities if name != "scalar"],
        "parts_off": run.parts_off,
        "not_offered": run.not_offered,
        "dropped_steps": run.dropped_steps,
        "params": run.params,
    }
