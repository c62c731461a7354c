"""Show a plot: in a window if there is a display, in a file if one is named, else in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vario.cli import output
from vario.reports.progress_words import Language, say, say_note

if TYPE_CHECKING:
    from vario.logs.history import History
    from vario.reports.progress_compare import Comparison


def show(history: History, language: Language, picture: Path | None, on_screen: bool) -> None:
    """Write the picture if a file is named; show the plot if requested."""
    if picture is not None:
        from vario.reports.progress_plot import save_progress

        save_progress(history, picture, language)
        _say(language, "saved", path=picture)
    if on_screen and not (has_display() and _open(history, language)) and picture is None:
        _say(language, "no_display")
        draw_in_terminal(history, language)


def show_comparison(
    comparison: Comparison, histories: Sequence[History], language: Language, picture: Path | None, on_screen: bool
) -> None:
    """`show` for a comparison."""
    from vario.reports.progress_compare_plot import open_comparison, save_comparison

    if picture is not None:
        save_comparison(comparison, histories, picture, language)
        _say(language, "saved", path=picture)
    is_open = on_screen and has_display() and open_comparison(comparison, histories, language)
    if on_screen and not is_open and picture is None:
        _say(language, "no_display")
        for entry, history in zip(comparison.entries, histories, strict=True):
            if entry.name in comparison.lines:
                output.stdout().print(entry.name, markup=False, style="bold")
                draw_in_terminal(history, language)


def has_display() -> bool:
    """Whether there is a screen to open a window on."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(history: History, language: Language) -> bool:
    from vario.reports.progress_plot import open_progress

    return open_progress(history, language)


def draw_in_terminal(history: History, language: Language) -> None:
    """Draw the loss with characters."""
    from vario.reports.progress import shown_loss
    from vario.reports.terminal_plot import line_plot, spans_decades
    from vario.runs.views.downsample import downsample

    loss = shown_loss(history)
    console = output.stdout()
    if not len(loss):
        console.print(say(language, "no_loss"), markup=False)
        return
    steps, values = downsample(loss.steps, loss.values, 2000)
    text = line_plot(steps, values, width=min(console.width, 100), log=spans_decades(values))
    console.print(say(language, "plot_loss"), markup=False, style="bold")
    console.print(text, markup=False, soft_wrap=True)


def _say(language: Language, kind: str, **about: object) -> None:
    output.stderr().print(say_note(language, kind, about), markup=False, soft_wrap=True)
