"""Where two runs part: the first step and tensor at which they differ by more than noise.

Steps are matched by number, targets by name; among those that part in one step the first in the order of execution is
named. Noise is estimated from the runs themselves: runs that were equal to the bit have none, rounding grows slowly,
and runs of other seeds differ as much as each of them varies. Also named: what differs most, what only one run has,
and options and versions that are not the same.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output

EXAMPLES = """
vario diff before after
vario diff vario_runs/one vario_runs/two --quantity gradient --quantity weight
vario diff eager compiled --rename '*=>_orig_mod.*'
vario diff old new --rename 'encoder.=>backbone.' --rename 're:layers\\.(\\d+)\\.(.*)=>blocks.\\1.\\2' --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the two runs and how to match them."""
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help="folder of a run, or the name of one under vario_runs")
    parser.add_argument(
        "--rename",
        metavar="OLD=>NEW",
        action="append",
        default=[],
        help="what A's names are called in B: a name, a beginning with its dot, a glob, or re:expression",
    )
    parser.add_argument("--quantity", metavar="Q", action="append", help="only this quantity; may be given again")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many that differ most (default: 10)")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare two runs."""
    from vario.runs.compare.difference import diff

    first, second = shared.find_run(arguments.a), shared.find_run(arguments.b)
    found = diff(first, second, arguments.rename, arguments.quantity, arguments.top)
    if arguments.json:
        output.print_json({"text": str(found), **output.plain(found)})
    else:
        from vario.reports.difference_text import render_difference

        output.stdout().print(render_difference(found))
    return 0
