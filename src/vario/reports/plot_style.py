"""Shared code for plots: colours, fonts, thinning of long curves, and writing to a file or a window.

Lines differ in lightness and style, not only in colour, so that they can be told apart in greyscale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vario.core.errors import ConfigError, MissingExtra
from vario.core.text import suggestion
from vario.logs.history import Curve
from vario.reports.plot_fonts import PlotFonts
from vario.reports.progress_words import WORDS
from vario.runs.views.downsample import downsample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[["Figure", PlotFonts], None]
"""Draws a plot into an empty figure."""

FORMATS = ("png", "svg", "pdf")
MAX_POINTS = 4000
"""More points than pixels only make a plot slow."""
DPI = 150

PALE, DARK, WARM, GREEN = "#9ec3e6", "#0b3c6f", "#d9730d", "#1b7f4b"
RED, GREY, PURPLE = "#c0182b", "#6b7280", "#7a3e9d"
COLORS = (DARK, WARM, GREEN, PURPLE, RED, "#0e8fa3", "#8a5a2b", "#d6569b")
FORMS: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

STYLE: dict[str, Any] = {
    "axes.edgecolor": "#b8bec8",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": "#374151",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.unicode_minus": True,
    "font.size": 10,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.fontsize": 9,
    "lines.solid_joinstyle": "round",
    "svg.hashsalt": "vario",
    "xtick.color": "#4b5563",
    "ytick.color": "#4b5563",
}


def check_picture_path(path: Path) -> None:
    """Raise ConfigError for a path that cannot be written as a picture, before any work is done."""
    ending = path.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ConfigError(f"--save-plot: cannot write '{path.name}' as a picture. {suggestion(ending, FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--save-plot: no folder {path.absolute().parent}")
    need_matplotlib()


def need_matplotlib() -> None:
    """Raise an error if matplotlib is missing or does not start."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtra("a plot", "plot") from None
    except ValueError as error:
        # It reads MPLBACKEND and its settings file on import.
        raise ConfigError(f"matplotlib does not start with its settings: {error}") from error


def save_picture(draw: Draw, path: Path, size_inches: tuple[float, float], names: Sequence[str]) -> None:
    """Write a plot as PNG, SVG or PDF; `names` are the user's texts in it."""
    check_picture_path(path)
    from matplotlib.figure import Figure

    # Without a timestamp, the same numbers give the same file.
    when = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    ending = path.suffix.lstrip(".").lower()
    with plot_style(names) as fonts:
        figure = Figure(figsize=size_inches, layout="constrained")
        draw(figure, fonts)
        try:
            figure.savefig(path, format=ending, dpi=DPI, metadata=when[ending])
        except OSError as error:
            raise ConfigError(f"--save-plot: {path} cannot be written: {error.strerror}") from error


def open_window(draw: Draw, size_inches: tuple[float, float], names: Sequence[str]) -> bool:
    """Show a plot in a window and wait until it is closed; False if matplotlib cannot open one."""
    need_matplotlib()
    try:
        import matplotlib.pyplot as plt

        # A backend that was set explicitly but is not available raises ImportError too.
        canvas = plt.figure().canvas
    except ImportError:
        return False
    plt.close("all")
    if canvas.required_interactive_framework is None:
        return False
    with plot_style(names) as fonts:
        draw(plt.figure(figsize=size_inches, layout="constrained"), fonts)
        plt.show()
    return True


@contextmanager
def plot_style(names: Sequence[str]) -> Iterator[PlotFonts]:
    """Apply our style temporarily; matplotlib's settings are restored."""
    import matplotlib

    fonts = PlotFonts([*names, *WORDS["zh"].values()])
    settings: Any = {**STYLE, "font.family": fonts.families}
    with matplotlib.rc_context(settings):
        yield fonts


def thinned(curve: Curve) -> Curve:
    """Reduce a curve to few points, keeping every extreme and every NaN."""
    if len(curve) <= MAX_POINTS:
        return curve
    positions = np.arange(len(curve))
    kept, _ = downsample(positions, curve.values, MAX_POINTS)
    chosen = np.zeros(len(curve), np.bool_)
    chosen[kept] = True
    return curve.where(chosen)


def line_look(index: int) -> tuple[str, Any]:
    """Return colour and style of the n-th line; the first forty are distinct."""
    return COLORS[index % len(COLORS)], FORMS[index % len(FORMS)]


def name_ticks(axis: Any) -> None:
    """Label the ticks of an axis with short numbers, without an offset exponent."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))


def compact(value: float) -> str:
    """Format a number compactly: 12k, 1.5M, 5e-05."""
    # 1000 is readable in full, so abbreviate from 10,000.
    for start, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= start:
            return f"{value / size:g}{unit}"
    return f"{value:.4g}"
