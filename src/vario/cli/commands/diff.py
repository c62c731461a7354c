"""Find where two runs diverge: the first step and tensor that differ by more than noise.

Begins with what was set differently, line by line: hyper-parameters, code, environment, packages, options.

Matches steps by number and targets by name. If several targets diverge in one step, it names the first in execution
order. Noise is estimated from the runs themselves: bit-identical runs have none, rounding differences grow slowly, and
runs with different seeds differ as much as each of them varies. Also lists what differs most and what only one run
has.
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
    """Add the two runs and how to match their names."""
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help="folder of a run, or its name under vario_runs")
    parser.add_argument(
        "--rename",
        metavar="OLD=>NEW",
        action="append",
        default=[],
        help="map A's names to B's: a name, a prefix with its dot, a glob, or re:expression",
    )
    parser.add_argument("--quantity", metavar="Q", action="append", help="only this quantity; repeatable")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="number of largest differences (default: 10)")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare two runs."""
    from vario.runs.compare.difference import diff
    from vario.runs.files.merged_parts import thinned_text

    first, second = shared.find_run(arguments.a), shared.find_run(arguments.b)
    found = diff(first, second, arguments.rename, arguments.quantity, arguments.top)
    thinned = [
        f"{one.name}: {text}"
        for one in (first, second)
        for name in (one.quantities("all") if one.ranks else [])
        if (text := thinned_text(name, one.thinned(name)))
    ]
    for text in thinned:
        output.say(text, to_stderr=True)
    if arguments.json:
        output.print_json({"text": str(found), **output.plain(found), "thinned": thinned})
    else:
        from vario.reports.difference_text import render_difference

        output.stdout().print(render_difference(found))
    return 0
