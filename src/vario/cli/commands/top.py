"""Watch runs live in a terminal, for example over ssh: progress, loss, alerts, ranks and a heat map.

Keys are those of the page: j and k move, Enter opens a run, Esc goes back, / searches, s sorts, q quits. Where the
output is no terminal, or with --once, it prints one screen and ends. --json prints the same runs once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import RunNotFound, VarioError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vario.runs.table.summary import RunSummary
    from vario.runs.table.summary_file import SummaryFile

EXAMPLES = """
vario top
vario top outputs --where 'state = running'
vario top --once
"""

SORTS = ("-started", "loss", "-alerts", "name")
SECONDS = 1.0
HEAT_COLUMNS = 60
KEY = re.compile(r"\x1b\[[A-DHF]|.", re.DOTALL)
ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[H": "home", "\x1b[F": "end", "\x1b": "esc", "\x7f": "back"}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the folder, the filter and --once."""
    shared.add_directory(parser, "folder with runs")
    parser.add_argument("--where", metavar="FILTER", default="", help="only runs such as `state = running`")
    parser.add_argument("--once", action="store_true", help="print one screen and end")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the screen until q."""
    directory = shared.local_folder(arguments.directory, follow=True)
    if not directory.is_dir():
        raise RunNotFound(f"{directory}: no such folder. Start a run with `vario run`, or name another folder.")
    if arguments.json:
        from vario.cli.run_table import read_runs
        from vario.runs.table.table import USUAL, make_table, rows_json

        output.print_json(rows_json(make_table(read_runs(directory), list(USUAL), arguments.where)))
        return 0
    screen = Screen(directory, arguments.where)
    console = output.stdout()
    if arguments.once or not (sys.stdin.isatty() and console.is_terminal):
        screen.read()
        console.print(screen.render(1000))
        return 0
    from rich.live import Live

    with _keys() as next_key, Live(console=console, screen=True, auto_refresh=False) as live:
        while not screen.is_over:
            screen.read()
            live.update(screen.render(console.height), refresh=True)
            key = next_key(SECONDS)
            while key is not None and not screen.is_over:
                screen.press(key)
                live.update(screen.render(console.height), refresh=True)
                key = next_key(0.0)
    return 0


class Screen:
    """What is shown, and what keys do to it. Runs whose files have not changed are not read again."""

    def __init__(self, directory: Path, where: str) -> None:
        self.is_over = False
        self._directory = directory
        self._where = where
        self._known: dict[Path, tuple[object, RunSummary]] = {}
        self._runs: list[RunSummary] = []
        self._current = 0
        self._sort = 0
        self._is_open = False
        self._search = ""
        self._is_typing = False
        self._stored: SummaryFile | None = None

    def read(self) -> None:
        """Read what has changed."""
        from vario.runs.table.columns import Columns
        from vario.runs.table.table import select, sort_runs
        from vario.runs.views.name_search import matching

        found = list(self._summaries())
        columns = Columns(found)
        key = SORTS[self._sort]
        column = columns.find(key.removeprefix("-"))
        titles = set(matching((run.title for run in found), self._search))
        kept = [run for run in select(found, columns, self._where) if run.title in titles]
        self._runs = sort_runs(kept, column, key.startswith("-"))
        self._current = max(0, min(self._current, len(self._runs) - 1))

    def press(self, key: str) -> None:
        """Do what a key says."""
        if key == "\x03":
            self.is_over = True
        elif self._is_typing:
            self._type(key)
        elif key == "q":
            self.is_over = True
        elif key == "/":
            self._is_typing, self._is_open = True, False
        elif key in ("home", "end"):
            self._current = 0 if key == "home" else max(0, len(self._runs) - 1)
        elif key in ("j", "down"):
            self._current = min(len(self._runs) - 1, self._current + 1)
        elif key in ("k", "up"):
            self._current = max(0, self._current - 1)
        elif key in ("\r", "\n"):
            self._is_open = bool(self._runs)
        elif key == "esc":
            self._is_open = False
        elif key == "s":
            self._sort = (self._sort + 1) % len(SORTS)
            self.read()

    def _type(self, key: str) -> None:
        """Take a key of the search: arrows, Enter and Esc leave it, and Esc also clears it."""
        if key in ("\r", "\n", "up", "down", "esc"):
            self._is_typing = False
            self._search = "" if key == "esc" else self._search
        elif key == "back":
            self._search = self._search[:-1]
        elif key.isprintable() and len(key) == 1:
            self._search += key
        self.read()

    def render(self, height: int) -> RenderableType:
        """Return the screen, at most this many lines high."""
        from rich.text import Text

        from vario.reports.top_text import render_run, render_runs

        if not self._runs and not self._search:
            return Text(f"No runs in {self._directory} or its subfolders{' match' if self._where else ''}.")
        if not self._is_open:
            search = f"/{self._search}{'_' if self._is_typing else ''}" if self._search or self._is_typing else ""
            sort = SORTS[self._sort].removeprefix("-")
            return render_runs(self._runs, self._current, max(1, height - 3), sort, search)
        return render_run(self._runs[self._current], *self._opened(height))

    def _opened(self, height: int) -> tuple[Any, Any, list[str]]:
        from vario.runs.run import Run
        from vario.runs.views.heat import read_heat

        found = Run(self._path(self._runs[self._current]))
        recorded = [name for name in found.quantities("all") if name != "scalar"] if found.ranks else []
        quantity = next((name for name in ("gradient", "activation", "weight", *recorded) if name in recorded), None)
        heat = None
        if quantity is not None:
            rows = max(4, min(40, height - 12))
            heat = read_heat(found, quantity, "", "all", None, None, rows, HEAT_COLUMNS)
        texts = [f"step {each.step}: {each.lead.text}" for each in found.incidents if each.severity != "note"]
        return found.rank_states, heat, texts

    def _path(self, summary: RunSummary) -> Path:
        return self._directory if summary.run == "." else self._directory / summary.run

    def _summaries(self) -> Iterator[RunSummary]:
        from vario.cli.run_table import read_run
        from vario.runs.files.run_paths import runs_below
        from vario.runs.files.status import is_run
        from vario.runs.table.summary_file import SummaryFile

        if self._stored is None:
            self._stored = SummaryFile(self._directory)
        for folder in [self._directory] if is_run(self._directory) else runs_below(self._directory):
            stamp = _stamp(folder)
            known = self._known.get(folder)
            if known is None or known[0] != stamp or known[1].brief.state in ("running", "stalled"):
                label = "." if folder == self._directory else str(folder.relative_to(self._directory))
                try:
                    read = partial(read_run, folder, label)
                    known = (stamp, self._stored.read(label, label, folder, read))
                except VarioError:
                    continue  # being written, or damaged: `vario ls` says which
                self._known[folder] = known
            yield known[1]


def _stamp(folder: Path) -> object:
    """Changes with the files at the top of a run and of its ranks."""
    found = []
    for place in (folder, *folder.glob("rank*")):
        try:
            with os.scandir(place) as entries:
                found += [(entry.name, entry.stat(follow_symlinks=False).st_mtime_ns) for entry in entries]
        except OSError:
            continue
    return tuple(sorted(found))


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for a key: one character, `up`, `down` or `esc`; None if none came."""
    import select
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    waiting: list[str] = []

    def next_key(seconds: float) -> str | None:
        if not waiting and select.select([descriptor], [], [], seconds)[0]:
            typed = os.read(descriptor, 64).decode("latin-1") or "q"  # the terminal is gone
            waiting.extend(ARROWS.get(key, key) for key in KEY.findall(typed))
        return waiting.pop(0) if waiting else None

    tty.setcbreak(descriptor)
    try:
        yield next_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
