"""Watch a run from another process: compare its ranks and report when one stalls or dies.

DIR is a run, or a folder of runs (its latest run is used). Rules that compare ranks check each step as soon as all
ranks have finished it, without any communication inside the training job. Their findings are printed and stored in the
run's folder `watch`. Incidents found inside the training processes are printed too. Ends when the run ends, or on
Ctrl-C.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vario.cli import arguments as shared
from vario.core.errors import ConfigError, RunNotFound

if TYPE_CHECKING:
    from pathlib import Path

    from vario.notices.sending import Notices
    from vario.rules import Chosen
    from vario.runs.run import Run

EXAMPLES = """
vario follow
vario follow vario_runs --all-runs --keep
vario follow vario_runs/long_run --config vario.toml --stall 120
vario follow vario_runs/long_run --once --all --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the rules and the timing."""
    shared.add_directory(parser, "a run, or a folder of runs")
    parser.add_argument("--all-runs", action="store_true", help="watch all active runs in DIR, not only the latest")
    parser.add_argument("--all", action="store_true", help="use all rules, not only those that compare ranks")
    parser.add_argument("--config", metavar="FILE", help="read `rules` and `notify` from a .toml, .yaml or .json file")
    parser.add_argument(
        "--stall",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="report a stall after this long without a step (default: 60)",
    )
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between two checks (default: 2)"
    )
    parser.add_argument("--once", action="store_true", help="check once, then exit")
    parser.add_argument(
        "--keep", action="store_true", help="keep watching after the run has ended, in case it restarts"
    )
    parser.add_argument(
        "--json", action="store_true", help='print one JSON object per line; NaN and infinity become "nan", "inf"'
    )


def run(arguments: argparse.Namespace) -> int:
    """Watch until the run ends."""
    import time

    from vario.cli import following
    from vario.runs.run import Run

    for name in ("stall", "interval"):
        if not getattr(arguments, name) > 0:
            raise ConfigError(f"--{name}: expected a number above 0, got {getattr(arguments, name)}")
    _find(arguments, first=True)
    speaker = following.Speaker(arguments.json, arguments.all_runs, _notices(arguments.config), not arguments.all)

    def begin(path: Path) -> following.Watched:
        opened = Run(path)
        rules = _rules(arguments, opened)
        if not arguments.json:
            ranks = f"{opened.world_size} rank{'s' if opened.world_size > 1 else ''}"
            speaker.remark(path, "begin", f"watching {path} ({ranks}) with {len(rules)} rules")
        return following.Watched(path, rules, arguments.stall)

    following.watch(
        lambda: _find(arguments),
        begin,
        speaker,
        lambda: time.sleep(arguments.interval),
        time.time,
        once=arguments.once,
        keep=arguments.keep,
    )
    return 0


def _find(arguments: argparse.Namespace, first: bool = False) -> list[Path]:
    from vario.runs.files.run_paths import find_run, run_folders
    from vario.runs.run import Run

    try:
        if not arguments.all_runs:
            return [find_run(arguments.directory)]
        folders = run_folders(shared.local_folder(arguments.directory))
        if first and not folders:
            find_run(arguments.directory)  # raises the error that says what is wrong
        return [folder for folder in folders if Run(folder).state in ("running", "stalled")]
    except RunNotFound:
        if first and not arguments.keep:
            raise
        return []


def _rules(arguments: argparse.Namespace, run: Run) -> list[Chosen]:
    from vario.config import read_config
    from vario.rules import choose
    from vario.runs.findings.replay import rules_of

    found = choose(read_config(arguments.config).rules) if arguments.config else rules_of(run)
    return [entry for entry in found if arguments.all or entry.rule.over == "ranks"]


def _notices(config: str | None) -> Notices | None:
    if config is None:
        return None
    from vario.config import read_config
    from vario.notices.sending import Notices

    return Notices(read_config(config))
