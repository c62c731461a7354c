"""Show what changed recently in a run, largest change first.

Reduces thousands of series to a few lines. Compares the last steps of each series with the steps before, relative to
the series' own spread, and ranks the result: a new level, a trend, a spike, more or less noise, a value that stopped
changing, a NaN. Duplicates (a module's output and the next module's input) are one line, and so is a change that most
tensors share. `--points` searches the whole run instead: it lists the steps at which levels shifted, and what shifted
there.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError

if TYPE_CHECKING:
    from vario.runs.run import Run

EXAMPLES = """
vario changes
vario changes vario_runs/demo --last 100
vario changes vario_runs/demo --quantity gradient --top 20
vario changes vario_runs/demo --points
vario changes vario_runs/demo --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run and what to compare."""
    shared.add_run(parser)
    parser.add_argument(
        "--last", type=int, metavar="N", help="number of recent steps (default: a tenth of those recorded, 5 to 50)"
    )
    parser.add_argument("--quantity", metavar="Q", help="only this quantity, for example gradient")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="number of lines (default: 10)")
    parser.add_argument(
        "--points", action="store_true", help="the steps at which levels shifted, over all series of the run"
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show what changed."""
    from vario.runs.findings.changes import rank_changes

    if arguments.top < 1:
        raise ConfigError(f"--top: expected a number of lines of at least 1, got {arguments.top}")
    found = shared.find_run(arguments.run)
    if arguments.points:
        return _show_points(found, arguments)
    ranking = rank_changes(found, arguments.last, arguments.quantity, arguments.top)
    if arguments.json:
        output.print_json(ranking)
    else:
        from vario.reports.changes_text import render_changes

        output.stdout().print(render_changes(ranking))
    return 0


def _show_points(found: Run, arguments: argparse.Namespace) -> int:
    from vario.runs.findings.change_points import find_change_points

    if arguments.quantity is not None or arguments.last is not None:
        raise ConfigError("--points: searches all quantities and all steps; leave out --quantity and --last")
    points = find_change_points(found, top=arguments.top)
    if arguments.json:
        output.print_json({"points": points, "last_step": found.last_step})
    else:
        from vario.reports.changes_text import render_points

        output.stdout().print(render_points(points, found.last_step))
    return 0
