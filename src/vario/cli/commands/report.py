"""Summarise a run: its state, its loss, and the first tensor that broke."""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError

EXAMPLES = """
vario report
vario report vario_runs/demo
vario report vario_runs/demo --json
vario report eight-gpus --baseline one-gpu
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, --baseline and --json."""
    shared.add_run(parser)
    parser.add_argument("--baseline", metavar="RUN", help="compare the speed with that of this run, rank for rank")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the summary of one run."""
    from vario.reports.summary import summarise

    baseline = None if arguments.baseline is None else shared.find_run(arguments.baseline)
    summary = summarise(shared.find_run(arguments.run), baseline)
    if baseline is not None and summary.linearity is None:
        raise ConfigError(f"--baseline: the speed of this run or of '{baseline.name}' is not known: too few steps")
    if arguments.json:
        output.print_json(summary)
    else:
        from vario.reports.summary_text import render

        output.stdout().print(render(summary))
    return 0
