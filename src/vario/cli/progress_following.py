"""`vario progress --watch`: updates in place on a terminal, prints new rows as lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vario.cli import output
from vario.reports.progress import summarise_progress
from vario.reports.progress_text import render_progress, verdict_lines
from vario.reports.progress_watch import Row, follow
from vario.reports.progress_words import Language

if TYPE_CHECKING:
    from vario.logs.history import History


def watch(find: Callable[[], History], language: Language, is_terminal: bool, sleep: Callable[[float], None]) -> None:
    """Follow a run until it ends or until Ctrl-C, which is not an error."""
    try:
        if is_terminal:
            _in_place(find, language, sleep)
        else:
            _line_by_line(find, language, sleep)
    except KeyboardInterrupt:
        return


def _in_place(find: Callable[[], History], language: Language, sleep: Callable[[float], None]) -> None:
    from rich.live import Live

    with Live(console=output.stdout(), auto_refresh=False) as screen:

        def show(history: History, _: list[Row]) -> None:
            screen.update(render_progress(history, summarise_progress(history), language), refresh=True)

        follow(find, show, sleep)


def _line_by_line(find: Callable[[], History], language: Language, sleep: Callable[[float], None]) -> None:
    console = output.stdout()
    said: list[str] = []

    def show(history: History, rows: list[Row]) -> None:
        for row in rows:
            console.print(str(row), markup=False, soft_wrap=True)
        for line in verdict_lines(summarise_progress(history), language):
            if line not in said:
                said.append(line)
                console.print(line, markup=False, soft_wrap=True)
        console.file.flush()

    follow(find, show, sleep)
