"""Summarise a run: its state, its loss, and the first tensor that broke."""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output

EXAMPLES = """
vario report
vario report vario_runs/demo
vario report vario_runs/demo --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run and --json."""
    shared.add_run(parser)
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the summary of one run."""
    from vario.reports.summary import summarise

    summary = summarise(shared.find_run(arguments.run))
    if arguments.json:
        output.print_json(summary)
    else:
        from vario.reports.summary_text import render

        output.stdout().print(render(summary))
    return 0
