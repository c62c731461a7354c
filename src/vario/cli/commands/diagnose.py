"""What went wrong first in a run, and why, in one paragraph.

Over the folders of all ranks: step, rank, tensor, rule, value and usual range, what followed, likely cause and next
action. Runs whose rows take up to 32 MiB are replayed with the rules they were watched with; of larger ones the alerts
that were stored while they ran are read.
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
    """Add the run, where to look, and --json."""
    shared.add_run(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--replay", action="store_true", help="replay the rules, however large the run is")
    where.add_argument("--stored", action="store_true", help="read the stored alerts, however small the run is")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Say what went wrong first."""
    from vario.runs.findings.diagnosis import Source, diagnose

    source: Source | None = "replay" if arguments.replay else "stored" if arguments.stored else None
    diagnosis = diagnose(shared.find_run(arguments.run), source)
    if arguments.json:
        output.print_json({"text": str(diagnosis), **output.plain(diagnosis)})
        return 0
    from vario.reports.diagnosis_text import render_diagnosis

    output.stdout().print(render_diagnosis(diagnosis))
    return 0
