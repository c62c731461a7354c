"""Train a small transformer for a minute, and break it halfway.

A character-level transformer trains on vario's own documentation, on the CPU. Halfway through, one bit of one weight is
flipped; the report at the end says which tensor broke first. With --serve the dashboard shows it live. Needs torch, or
with --mindspore MindSpore.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import subprocess
import sys
import threading
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
vario demo --mindspore
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the duration, the folder and the fault."""
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train (default: 60)")
    parser.add_argument("--steps", type=int, metavar="N", help="train exactly N steps instead")
    parser.add_argument("--no-fault", dest="fault", action="store_false", help="do not flip a bit")
    parser.add_argument("--serve", action="store_true", help="open the dashboard and keep it open until Ctrl-C")
    parser.add_argument("--mindspore", action="store_true", help="train with MindSpore instead of torch")
    parser.add_argument("--directory", default="vario_runs", help="folder for the run (default: vario_runs)")


def run(arguments: argparse.Namespace) -> int:
    """Train, print the report, and suggest commands to continue with."""
    from vario import demo, demo_mindspore
    from vario.reports.summary import summarise
    from vario.reports.summary_text import render
    from vario.runs.run import open_run

    if arguments.seconds <= 0 or (arguments.steps is not None and arguments.steps < 1):
        raise ConfigError("demo: --seconds and --steps must be greater than 0")
    with dashboard(arguments.directory) if arguments.serve else contextlib.nullcontext() as page:
        with uninterrupted(), contextlib.suppress(ImportError):
            importlib.import_module("mindspore" if arguments.mindspore else "torch")
        path = (demo_mindspore if arguments.mindspore else demo).train(
            seconds=arguments.seconds,
            steps=arguments.steps,
            fault=arguments.fault,
            directory=arguments.directory,
            console=output.stderr(),
        )
        summary = summarise(open_run(path))
        console = output.stdout()
        console.print(render(summary))
        console.print("\nNext, try:")
        for line in suggestions(summary):
            console.print(f"  {line}", soft_wrap=True, markup=False)
        if page is not None and sys.stdout.isatty():
            console.print("\nThe dashboard stays open until Ctrl-C.")
            with contextlib.suppress(KeyboardInterrupt):
                page.wait()
    return 0


@contextlib.contextmanager
def dashboard(directory: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `vario serve` in its own process during training; it prints its link."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    # Ending this process ends the dashboard too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with subprocess.Popen([sys.executable, "-m", "vario", "serve", directory]) as page:
        try:
            yield page
        finally:
            page.terminate()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let SIGTERM wait: C++ code that is being imported aborts the process if a handler raises in the middle of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler, came = signal.getsignal(signal.SIGTERM), []
    signal.signal(signal.SIGTERM, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
    if came:
        signal.raise_signal(signal.SIGTERM)


def suggestions(summary: RunSummary) -> Iterator[str]:
    """Yield commands that show more of this run."""
    yield f"vario serve {summary.path}"
    yield f"vario report {summary.path}"
    if summary.first_bad is not None:
        bad = summary.first_bad
        yield f"vario show {summary.path} '{bad.target}' --quantity {bad.quantity}"
    if summary.jump is not None:
        jump = summary.jump
        yield f"vario show {summary.path} '{jump.target}' --quantity {jump.quantity} --statistic absmax"
    yield f"vario show {summary.path} 'blocks.*.mlp.*' --quantity gradient"
