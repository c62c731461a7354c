"""Make existing runs smaller: thin old rows and merge small files, as a training does in the background.

Keeps the newest steps, rows with NaN or Inf and steps around incidents in full; of the rest there are lowest, highest,
mean and last values over ever longer intervals. --retention all keeps every row and only merges files. RUN may be a
folder of runs. A run that a process is writing is refused. A kill at any moment loses nothing. See docs/volume.md.
"""

from __future__ import annotations

import argparse
from typing import Any

from vario.cli import arguments as shared
from vario.cli import output

EXAMPLES = """
vario compact vario_runs/demo --dry-run
vario compact vario_runs/demo
vario compact vario_runs --retention all
vario compact vario_runs/demo --retention steps=5000,bytes=2GB,activation.steps=200
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the runs and what is kept."""
    parser.add_argument("run", metavar="RUN|DIR", help="folder of a run or of runs, or a name under vario_runs")
    parser.add_argument("--dry-run", action="store_true", help="print the bytes before and after, and change nothing")
    parser.add_argument(
        "--retention",
        metavar="A=X,B=X | tiers | all",
        help="what is kept in full, as the option `retention` (default: what the run was recorded with, or tiers)",
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compact one run, or each run of a folder."""
    from pathlib import Path

    from vario.cli.options import retention_from
    from vario.core.errors import RunError
    from vario.core.retention_options import TIERS
    from vario.core.text import size
    from vario.runs.run import list_runs
    from vario.store.compacting import compact_run, dry_run, is_run, refuse_live, volume

    wanted = None if arguments.retention is None else retention_from(arguments.retention)
    place = Path(arguments.run)
    is_folder = place.is_dir() and not is_run(place)
    found = list_runs(place) if is_folder else []
    told: list[dict[str, Any]] = []
    failed = 0
    for one in found if is_folder else [shared.find_run(arguments.run)]:
        try:
            refuse_live(one.path)
            before = volume(one.path)
            options = wanted or one.config.get("retention") or TIERS
            after = (dry_run if arguments.dry_run else compact_run)(one.path, options)
        except RunError as error:
            if not is_folder:
                raise
            failed += 1
            output.say(f"{error}", to_stderr=True)
            continue
        told.append({"run": one.path, "before": before, "after": after, "is_dry_run": arguments.dry_run})
        if not arguments.json:
            verb = "would take" if arguments.dry_run else "takes"
            output.say(
                f"{one.name}: {size(before.num_bytes)} in {before.num_files:,} files; {verb} "
                f"{size(after.num_bytes)} in {after.num_files:,} files"
            )
    if arguments.json:
        output.print_json(told if is_folder else told[0])
    return 1 if failed else 0
