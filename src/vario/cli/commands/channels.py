"""Show the largest channels of weights and activations, and how concentrated they are.

One line per tensor, the most uneven first: its largest channels by number, the largest magnitude over the mean of all
channels, the share of the tensor's squares in one channel and in the eight largest, and how many channels are dead. The
quantity `channel` is off by default.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError

EXAMPLES = """
vario channels
vario channels vario_runs/demo --step 100 --top 20
vario channels vario_runs/demo --kind features --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run and what to show."""
    shared.add_run(parser)
    parser.add_argument("--step", type=int, metavar="N", help="the step to look at (default: the latest)")
    parser.add_argument("--kind", choices=("rows", "columns", "features"), help="only this kind of channels")
    parser.add_argument("--top", type=int, default=40, metavar="N", help="number of lines (default: 40)")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the table."""
    if arguments.top < 1:
        raise ConfigError(f"--top: expected a number of lines of at least 1, got {arguments.top}")
    found = [
        one for one in shared.find_run(arguments.run).channels(arguments.step) if arguments.kind in (None, one.kind)
    ]
    if arguments.json:
        output.print_json({"tensors": found})
    else:
        from vario.reports.channels_text import render_channels

        output.stdout().print(render_channels(found, arguments.top))
    return 0
