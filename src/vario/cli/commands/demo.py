"""Train a small transformer for a minute, watched, and break it half way.

A character-level transformer learns vario's own documentation on the CPU. Half way one bit of one weight is
flipped; the closing report says which tensor went bad first. With --serve the dashboard shows it live. Needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vario.cli import output
from vario.core.errors import ConfigError

if TYPE_CHECKING:
    from vario.reports.summary import RunSummary

EXAMPLES = """
vario demo
vario demo --serve
vario demo --seconds 20
vario demo --no-fault --steps 200
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add how long, where, and whether to break it."""
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train (default: 60)")
    parser.add_argument("--steps", type=int, metavar="N", help="train exactly N steps instead")
    parser.add_argument("--no-fault", dest="fault", action="store_false", help="leave the model whole")
    parser.add_argument("--serve", action="store_true", help="open the dashboard, and leave it open until Ctrl-C")
    parser.add_argument("--directory", default="vario_runs", help="folder for the run (default: vario_runs)")


def run(arguments: argparse.Namespace) -> int:
    """Train, report, and say how to look further."""
    from vario.demo import train
    from vario.reports.summary import summarise
    from vario.reports.summary_text import render
    from vario.runs.run import open_run

    if arguments.seconds <= 0 or (arguments.steps is not None and arguments.steps < 1):
        raise ConfigError("demo: it has to train for a while; --seconds and --steps must be greater than 0")
    with dashboard(arguments.directory) if arguments.serve else contextlib.nullcontext() as page:
        path = train(
            seconds=arguments.seconds,
            steps=arguments.steps,
            fault=arguments.fault,
            directory=arguments.directory,
            console=output.stderr(),
        )
        summary = summarise(open_run(path))
        console = output.stdout()
        console.print(render(summary))
        console.print("\nLook further:")
        for line in suggestions(summary):
            console.print(f"  {line}", soft_wrap=True, markup=False)
        if page is not None and sys.stdout.isatty():
            console.print("\nThe dashboard stays open until Ctrl-C.")
            with contextlib.suppress(KeyboardInterrupt):
                page.wait()
    return 0


@contextlib.contextmanager
def dashboard(directory: str) -> Iterator[subprocess.Popen[bytes]]:
    """`vario serve` beside the training, in a process of its own; it prints its link."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    # Who ends this process ends the page with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with subprocess.Popen([sys.executable, "-m", "vario", "serve", directory]) as page:
        try:
            yield page
        finally:
            page.terminate()


def suggestions(summary: RunSummary) -> Iterator[str]:
    """Commands that show more of this run."""
    yield f"vario serve {summary.path}"
    yield f"vario report {summary.path}"
    if summary.first_bad is not None:
        bad = summary.first_bad
        yield f"vario show {summary.path} '{bad.target}' --quantity {bad.quantity}"
    if summary.jump is not None:
        jump = summary.jump
        yield f"vario show {summary.path} '{jump.target}' --quantity {jump.quantity} --statistic absmax"
    yield f"vario show {summary.path} 'blocks.*.mlp.*' --quantity gradient"
