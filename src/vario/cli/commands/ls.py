"""The runs in a folder and the folders below it, newest last."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.text import number

if TYPE_CHECKING:
    from vario.runs.run import Run

EXAMPLES = """
vario ls
vario ls other_runs
vario ls --json
"""

MARK = "*"
"""After a loss that nobody logged."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the folder, --all and --json."""
    shared.add_directory(parser, "folder that holds runs")
    parser.add_argument("--all", action="store_true", help="one line for each run of a group, such as a grid search's")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the runs."""
    from vario.runs.files.run_paths import runs_below
    from vario.runs.files.status import is_run
    from vario.runs.run import runs_at

    directory = Path(arguments.directory)
    rows = [describe(found) for found in runs_at([directory] if is_run(directory) else runs_below(directory))]
    if arguments.json:
        output.print_json(rows)
        return 0
    if not rows:
        output.stderr().print(f"No run in {directory}, nor in the folders below it.", markup=False)
        return 0
    from datetime import datetime

    from rich.table import Table

    are_deeper = any(row["path"].parent not in (directory, directory.parent) for row in rows)
    table = Table(
        *(["folder"] if are_deeper else []),
        *("name", "state", "started", "last step", "loss", "incidents", "ranks", "quantities"),
        box=None,
        pad_edge=False,
    )
    for row in rows if arguments.all else grouped(rows):
        started = datetime.fromtimestamp(row["started"]).strftime("%Y-%m-%d %H:%M")
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
        output.stdout().print(f"{MARK} found by vario, not logged by the training", style="dim", markup=False)
    return 0


def grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for the runs that a process made one after the other, in the place of the first of them."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"] or row["path"], []).append(row)
    return [members[0] if len(members) == 1 else _as_one(members) for members in groups.values()]


def _as_one(members: list[dict[str, Any]]) -> dict[str, Any]:
    states = [row["state"] for row in members]
    losses = [row["loss"] for row in members if row["loss"] is not None]
    # What is under way or went wrong matters more than the rest.
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
    """How it fares; of several ranks, which one failed first."""
    from vario.runs.files.rank_failures import first_failure

    first = first_failure(row["rank_states"]) if row["world_size"] > 1 and row["state"] == "crashed" else None
    return str(row["state"]) if first is None else f"{row['state']} (rank {first.rank})"


def _ranks(row: dict[str, Any]) -> str:
    recorded, hosts = len(row["ranks"]), {found.host for found in row["rank_states"]}
    text = str(recorded) if recorded == row["world_size"] else f"{recorded} of {row['world_size']}"
    return f"{text} on {len(hosts)} hosts" if len(hosts) > 1 else text


def describe(run: Run) -> dict[str, Any]:
    """What the list says about one run."""
    from vario.runs.views.losses import read_losses

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
        "num_incidents": len(run.incidents),
        "ranks": ranks,
        "world_size": run.world_size,
        "rank_states": run.rank_states,
        "quantities": [name for name in quantities if name != "scalar"],
        "parts_off": run.parts_off,
        "dropped_steps": run.dropped_steps,
    }
