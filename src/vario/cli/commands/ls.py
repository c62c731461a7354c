"""The runs in a folder, newest last."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vario.cli import arguments as shared

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
    """Add the folder and --json."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        default=shared.DEFAULT_DIRECTORY,
        help=f"folder that holds runs (default: {shared.DEFAULT_DIRECTORY})",
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the runs."""
    from vario.cli import output
    from vario.runs.run import list_runs

    rows = [describe(found) for found in list_runs(arguments.directory)]
    if arguments.json:
        output.print_json(rows)
        return 0
    if not rows:
        output.stderr().print(f"No run in {arguments.directory}.", markup=False)
        return 0
    from datetime import datetime

    from rich.table import Table

    from vario.text import number

    table = Table(
        "name", "state", "started", "last step", "loss", "incidents", "ranks", "quantities", box=None, pad_edge=False
    )
    for row in rows:
        started = datetime.fromtimestamp(row["started"]).strftime("%Y-%m-%d %H:%M")
        step = "-" if row["last_step"] is None else str(row["last_step"])
        cells = (
            started,
            step,
            number(row["loss"]) + (MARK if row["loss_is_found"] else ""),
            str(row["num_incidents"]),
            _ranks(row),
            ", ".join(row["quantities"]),
        )
        table.add_row(row["name"], row["state"], *cells)
    output.stdout().print(table)
    if any(row["loss_is_found"] for row in rows):
        output.stdout().print(f"{MARK} found by vario, not logged by the training", style="dim", markup=False)
    return 0


def _ranks(row: dict[str, Any]) -> str:
    recorded, hosts = len(row["ranks"]), {found.host for found in row["rank_states"]}
    text = str(recorded) if recorded == row["world_size"] else f"{recorded} of {row['world_size']}"
    return f"{text} on {len(hosts)} hosts" if len(hosts) > 1 else text


def describe(run: Run) -> dict[str, Any]:
    """What the list says about one run."""
    from vario.runs.loss_series import read_losses

    ranks = run.ranks
    quantities = run.quantities(ranks[0]) if ranks else []
    loss = read_losses(run)[:1]
    return {
        "path": run.path,
        "name": run.name,
        "id": run.id,
        "state": run.state,
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
