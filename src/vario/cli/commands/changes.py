"""What changed lately: all series of a run, those first that left their past furthest.

Thousands of series come down to a few lines. The last steps of each are compared with the steps before, in units of the
series' own spread and by how much it matters: a new level, a trend, a spike, more or less noise, a value that stands
still, a NaN. What is the same thing (a module's output and the next one's input) is one line, and so is what most
tensors show together.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError

EXAMPLES = """
vario changes
vario changes vario_runs/demo --last 100
vario changes vario_runs/demo --quantity gradient --top 20
vario changes vario_runs/demo --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run and what to compare."""
    shared.add_run(parser)
    parser.add_argument(
        "--last", type=int, metavar="N", help="how many steps are lately (default: a tenth of those recorded, 5 to 50)"
    )
    parser.add_argument("--quantity", metavar="Q", help="only this quantity, for example gradient")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many lines (default: 10)")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show what changed."""
    from vario.runs.findings.changes import rank_changes

    if arguments.top < 1:
        raise ConfigError(f"--top: expected a number of lines of at least 1, got {arguments.top}")
    found = shared.find_run(arguments.run)
    ranking = rank_changes(found, arguments.last, arguments.quantity, arguments.top)
    if arguments.json:
        output.print_json(ranking)
    else:
        from vario.reports.changes_text import render_changes

        output.stdout().print(render_changes(ranking))
    return 0
