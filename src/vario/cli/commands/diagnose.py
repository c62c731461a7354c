"""Explain what went wrong first in a run, and why, in one paragraph.

Covers all ranks: step, rank, tensor, rule, value and usual range, consequences, likely cause and next action. Uses what
the rules found during training, like `vario check`. If no rules ran during training, it replays the run, up to 32 MiB
of rows. The ranks of an ended run are compared if nobody has done it yet.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output

EXAMPLES = """
vario diagnose
vario diagnose vario_runs/demo
vario diagnose vario_runs/demo --stored
vario diagnose vario_runs/demo --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, the source of findings, and --json."""
    shared.add_run(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--replay", action="store_true", help="run the rules over the stored steps again")
    where.add_argument("--stored", action="store_true", help="use only what was found during training")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what went wrong first."""
    from vario.runs.findings.check import Source
    from vario.runs.findings.diagnosis import diagnose

    source: Source | None = "replay" if arguments.replay else "stored" if arguments.stored else None
    diagnosis = diagnose(shared.find_run(arguments.run), source)
    if arguments.json:
        output.print_json({"text": str(diagnosis), **output.plain(diagnosis)})
        return 0
    from vario.reports.diagnosis_text import render_diagnosis

    output.stdout().print(render_diagnosis(diagnosis))
    return 0
