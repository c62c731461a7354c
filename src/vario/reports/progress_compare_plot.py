"""The plot of several runs: their losses, with the shared part drawn once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vario.logs.history import Curve, History
from vario.reports.plot_fonts import PlotFonts
from vario.reports.plot_style import DARK, GREY, RED, line_look, name_ticks, open_window, save_picture, thinned
from vario.reports.progress import find_break, shown_loss, trusted_loss
from vario.reports.progress_compare import Comparison
from vario.reports.progress_plot import moving_average
from vario.reports.progress_words import Language, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_ROWS = 100
MANY_LINES, MANY_ENDS = 6, 8
"""Above this number the legend is beside the plot and names are slanted."""
MUCH = 100
SIZE_INCHES = (12.0, 6.5)


def save_comparison(
    comparison: Comparison, histories: Sequence[History], path: Path, language: Language = "en"
) -> None:
    """Write the losses of several runs as PNG, SVG or PDF."""
    names = [entry.name for entry in comparison.entries]
    save_picture(
        lambda figure, fonts: draw_comparison(figure, fonts, comparison, histories, language), path, SIZE_INCHES, names
    )


def open_comparison(comparison: Comparison, histories: Sequence[History], language: Language = "en") -> bool:
    """Show the losses of several runs in a window; False if none can be opened."""
    names = [entry.name for entry in comparison.entries]
    return open_window(
        lambda figure, fonts: draw_comparison(figure, fonts, comparison, histories, language), SIZE_INCHES, names
    )


def draw_comparison(
    figure: Figure, fonts: PlotFonts, comparison: Comparison, histories: Sequence[History], language: Language
) -> None:
    """Draw all losses, the shared part once, with a mark where a checkpoint ends."""
    axes = figure.subplots()
    axes.set_title(say(language, "plot_compare"), fontsize=14)
    by_epoch = comparison.axis == "epoch"
    axes.set_xlabel(say(language, "plot_epoch" if by_epoch else "plot_step"))
    axes.set_ylabel(say(language, "compare_loss"))
    for axis in (axes.xaxis, axes.yaxis):
        name_ticks(axis)
    found = {entry.name: history for entry, history in zip(comparison.entries, histories, strict=True)}
    shared = None if by_epoch or len(comparison.lines) < 2 else comparison.same_until
    if shared is not None:
        _shared_line(axes, shown_loss(found[comparison.lines[0]]), shared, language)
    for index, name in enumerate(comparison.lines):
        loss = shown_loss(found[name])
        if shared is not None:
            # Start at the last shared point so that the lines connect.
            loss = loss.where(loss.steps >= shared)
        label = fonts.drawable(name)
        if (broken := find_break(found[name])) is not None and broken.is_lasting:
            label += f"   {say(language, 'plot_broken', step=broken.step)}"
            _mark_break(axes, loss, by_epoch)
        _line(axes, loss, by_epoch, label, *line_look(index))
    if spans_much(found[name] for name in comparison.lines):
        axes.set_yscale("log")
        name_ticks(axes.yaxis)
        axes.set_ylabel(say(language, "compare_loss_log"))
    ends = [entry for entry in comparison.entries if entry.part_of is not None or len(comparison.lines) == 1]
    for entry in ends:
        _mark_end(axes, found[entry.name], by_epoch, fonts.drawable(entry.name), 30 if len(ends) > MANY_ENDS else 0)
    if len(comparison.lines) > MANY_LINES:
        figure.legend(loc="outside right upper")
    elif axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best")


def spans_much(histories: Iterable[History]) -> bool:
    """Whether the losses span so much that only a logarithmic axis shows them."""
    losses = [trusted_loss(history).values for history in histories]
    values = np.concatenate([np.zeros(0), *losses])
    return bool(len(values) and values.min() > 0 and values.max() > MUCH * values.min())


def _shared_line(axes: Axes, loss: Curve, until: int, language: Language) -> None:
    common = thinned(loss.where(loss.steps <= until))
    if len(common) > 1:
        axes.plot(common.steps, common.values, color=GREY, linewidth=2.8, label=say(language, "plot_shared"))


def _line(axes: Axes, loss: Curve, by_epoch: bool, name: str, color: str, form: Any) -> None:
    """Draw one run's loss; a long one as a moving average over a pale line of all rows."""
    if len(loss) > MANY_ROWS:
        rows = thinned(loss)
        axes.plot(rows.epochs if by_epoch else rows.steps, rows.values, color=color, linewidth=0.8, alpha=0.25)
        loss = moving_average(loss.where(np.isfinite(loss.values)), len(loss) // 20 | 1)
    loss = thinned(loss)
    places = loss.epochs if by_epoch else loss.steps
    axes.plot(places, loss.values, color=color, linestyle=form, linewidth=2.0, label=name)


def _mark_break(axes: Axes, loss: Curve, by_epoch: bool) -> None:
    """Draw a cross at the last reliable loss."""
    whole = loss.where(np.isfinite(loss.values))
    axes.plot((whole.epochs if by_epoch else whole.steps)[-1:], whole.values[-1:], "X", color=RED, ms=9, zorder=5)


def _mark_end(axes: Axes, history: History, by_epoch: bool, name: str, slant: int) -> None:
    """Draw a ring where a checkpoint ends, with its name above."""
    loss = history.loss
    if not len(loss):
        return
    place = float(loss.epochs[-1] if by_epoch else loss.steps[-1])
    axes.plot([place], loss.values[-1:], "o", markersize=8, mfc="white", mec=DARK, mew=1.8, zorder=5)
    axes.annotate(
        name,
        (place, float(loss.values[-1])),
        xytext=(0, 12),
        textcoords="offset points",
        ha="left" if slant else "center",
        rotation=slant,
        fontsize=9,
        color=DARK,
        bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": "none", "alpha": 0.85},
        zorder=6,
    )
