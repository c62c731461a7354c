"""The plot of one run: loss, learning rate, gradient norm and the distribution of the loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vario.core.text import number
from vario.logs.history import EMPTY, GRADIENT_NORM, RATE, Curve, History
from vario.logs.names import is_evaluation
from vario.reports.plot_fonts import PlotFonts
from vario.reports.plot_style import (
    DARK,
    GREEN,
    GREY,
    PALE,
    PURPLE,
    RED,
    WARM,
    name_ticks,
    open_window,
    save_picture,
    thinned,
)
from vario.reports.progress import bad_steps, find_break, shown_loss, trusted_loss
from vario.reports.progress_words import Language, say
from vario.reports.terminal_plot import FARTHEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (12.0, 8.0)


def save_progress(history: History, path: Path, language: Language = "en") -> None:
    """Write the four panels of one run as PNG, SVG or PDF."""
    save_picture(
        lambda figure, fonts: draw_progress(figure, fonts, history, language), path, SIZE_INCHES, [str(history.path)]
    )


def open_progress(history: History, language: Language = "en") -> bool:
    """Show the four panels of one run in a window; False if none can be opened."""
    return open_window(
        lambda figure, fonts: draw_progress(figure, fonts, history, language), SIZE_INCHES, [str(history.path)]
    )


@np.errstate(over="ignore", invalid="ignore")
def draw_progress(figure: Figure, fonts: PlotFonts, history: History, language: Language) -> None:
    """Draw the four panels into a figure."""
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.12, h_pad=0.12, hspace=0.04, wspace=0.03)
    panels = figure.subplots(2, 2)
    _loss_panel(panels[0, 0], history, language)
    _rate_panel(panels[0, 1], history, language)
    _norm_panel(panels[1, 0], history, language)
    _spread_panel(panels[1, 1], history, language)
    for axes in (panels[0, 0], panels[0, 1], panels[1, 0]):
        left, right = axes.get_xlim()
        if right - left < 1:  # a single step
            axes.set_xlim(round((left + right) / 2) - 1, round((left + right) / 2) + 1)
    title = f"{say(language, 'plot_title')}   {fonts.drawable(_short(history.path))}"
    if history.step is not None:
        whole = "" if history.max_steps is None else f" / {history.max_steps}"
        title += f"   {say(language, 'plot_step')} {history.step}{whole}"
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="normal")


def _loss_panel(axes: Axes, history: History, language: Language) -> None:
    loss = shown_loss(history)
    axes.set_title(say(language, "plot_loss"))
    _label(axes, language)
    if not len(loss) and not any(_evaluation_losses(history)):
        _say_missing(axes, language)
        return
    thin = thinned(loss)
    is_few = len(loss) < 40
    axes.plot(
        thin.steps, thin.values, color=PALE, linewidth=1.2, marker="o" if is_few else "", markersize=3,
        label=say(language, "plot_each") if len(loss) else None,
    )  # fmt: skip
    ceiling = _ceiling(loss)
    window = max(3, len(loss) // 20 | 1)  # odd, so that it is symmetric
    if len(loss) >= 2 * window:
        trusted = trusted_loss(history)
        smooth = thinned(moving_average(trusted.where(trusted.values <= ceiling), window))
        axes.plot(
            smooth.steps, smooth.values, color=DARK, linewidth=2.2, label=say(language, "plot_average", count=window)
        )
    for (name, curve), form in zip(_evaluation_losses(history), ("o", "s", "^", "D", "v"), strict=False):
        axes.plot(curve.steps, curve.values, color=WARM, linewidth=1.4, linestyle="--", marker=form, ms=5, label=name)
    _mark_cut(axes, loss, ceiling, language)
    name_ticks(axes.yaxis)
    _mark_bad(axes, history, language)
    axes.legend(loc="best")


def _rate_panel(axes: Axes, history: History, language: Language) -> None:
    axes.set_title(say(language, "plot_rate"))
    _label(axes, language)
    curve = thinned(history.curves.get(RATE, EMPTY))
    if not len(curve):
        _say_missing(axes, language)
        return
    axes.plot(curve.steps, curve.values, color=GREEN, linewidth=2.0, marker="o" if len(curve) < 3 else "")
    axes.set_ylim(bottom=float(np.min(curve.values, where=np.isfinite(curve.values), initial=0.0)))
    name_ticks(axes.yaxis)


def _norm_panel(axes: Axes, history: History, language: Language) -> None:
    axes.set_title(say(language, "plot_norm"))
    _label(axes, language)
    curve = thinned(history.curves.get(GRADIENT_NORM, EMPTY))
    if not len(curve):
        _say_missing(axes, language)
        return
    if (curve.values[np.isfinite(curve.values)] > 0).any():
        axes.set_yscale("log", nonpositive="mask")
        _name_log_ticks(axes, curve)
    is_few = len(curve) < 40
    axes.plot(curve.steps, curve.values, color=PURPLE, linewidth=1.3, marker="o" if is_few else "", markersize=3)
    _mark_bad(axes, history, language)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best")


def _spread_panel(axes: Axes, history: History, language: Language) -> None:
    axes.set_title(say(language, "plot_spread"))
    axes.set_xlabel(say(language, "compare_loss"))
    name_ticks(axes.xaxis)
    axes.set_ylabel(say(language, "plot_count"))
    loss = trusted_loss(history)
    values = loss.values[loss.values <= _ceiling(loss)].clip(-FARTHEST, FARTHEST)
    if not len(values):
        _say_missing(axes, language)
        return
    low, high = float(values.min()), float(values.max())
    # Bars need a width: skip losses that differ only by rounding.
    size = max(abs(low), abs(high))
    room = (0.05 * size or 0.5) if high - low <= max(1e-9 * size, 1e-300) else 0.0
    bins = int(np.clip(2 * np.sqrt(len(values)), 5, 60))
    axes.hist(values, bins, range=(low - room, high + room), color=PALE, edgecolor="white", linewidth=0.6)
    median, last = float(np.median(loss.values)), float(loss.values[-1])
    axes.axvline(median, color=DARK, linewidth=2, label=say(language, "plot_median", value=number(median)))
    axes.axvline(last, color=WARM, linewidth=2, ls="--", label=say(language, "plot_last", value=number(last)))
    if len(values) < len(loss):
        label = say(language, "plot_cut", count=len(loss) - len(values), highest=number(float(loss.values.max())))
        axes.plot([], [], ">", color=WARM, label=label)
    _whole_ticks(axes.yaxis)
    axes.legend(loc="best")


def moving_average(curve: Curve, window: int) -> Curve:
    """Return the centred moving average over `window` points, fewer near the ends.

    The last points, with less than a quarter of the window after them, are omitted: their mean would follow each row
    and look like a change of direction.
    """
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    at = np.arange(len(curve))
    reach = np.minimum(window // 2, np.minimum(at, len(curve) - 1 - at))
    means = (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)
    return replace(curve, values=means).where(len(curve) - 1 - at >= window // 4)


def _evaluation_losses(history: History) -> list[tuple[str, Curve]]:
    return [(name, curve) for name, curve in history.curves.items() if is_evaluation(name) and name.endswith("loss")]


def _ceiling(loss: Curve) -> float:
    """The height above which a few outliers are cut off, so that they do not flatten the rest; else infinity."""
    finite = loss.values[np.isfinite(loss.values)]
    if len(finite) < 50:
        return np.inf
    low, high = np.percentile(finite, [0, 99])
    return float(high + 0.5 * (high - low)) if finite.max() > high + 2 * (high - low) else np.inf


def _mark_cut(axes: Axes, loss: Curve, ceiling: float, language: Language) -> None:
    """Draw arrows at the top where points are cut off, with the highest value."""
    cut = loss.where(loss.values > ceiling)
    if not len(cut):
        return
    low = float(np.nanmin(loss.values))
    axes.set_ylim(low - 0.05 * (ceiling - low), ceiling)
    label = say(language, "plot_cut", count=len(cut), highest=number(float(cut.values.max())))
    axes.plot(cut.steps, np.full(len(cut), ceiling), "^", color=WARM, markersize=7, clip_on=False, label=label)


def _mark_bad(axes: Axes, history: History, language: Language) -> None:
    """Mark where the run was not finite: a red area to the end, or single lines if it recovered."""
    broken = find_break(history)
    if broken is None:
        return
    if broken.is_lasting:
        end = max(int(curve.steps[-1]) for curve in history.curves.values())
        start = broken.step - 0.5 if broken.previous_step is None else (broken.step + broken.previous_step) / 2
        axes.axvspan(
            start, end + 0.5, color=RED, alpha=0.12, lw=0, label=say(language, "plot_broken", step=broken.step)
        )
        axes.axvline(broken.step, color=RED, linewidth=1.4)
        return
    steps, label = bad_steps(history), say(language, "plot_not_finite")
    height = axes.get_xaxis_transform()
    axes.vlines(steps, 0, 1, transform=height, color=RED, linewidth=1.2, linestyle=":", label=label)


def _name_log_ticks(axes: Axes, curve: Curve) -> None:
    """Label the ticks of a log axis that spans less than a few decades; powers of ten alone would be too few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = curve.values[np.isfinite(curve.values) & (curve.values > 0)]
    if positive.max() / positive.min() < 50:
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 3)))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _label(axes: Axes, language: Language) -> None:
    axes.set_xlabel(say(language, "plot_step"))
    _whole_ticks(axes.xaxis)


def _whole_ticks(axis: Any) -> None:
    axis.get_major_locator().set_params(integer=True)
    name_ticks(axis)


def _say_missing(axes: Axes, language: Language) -> None:
    axes.text(0.5, 0.5, say(language, "not_logged"), transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def _short(path: Path) -> str:
    """The end of a path that identifies a run: its folder, and the one above a checkpoint."""
    parts = path.absolute().parts
    folder = parts[:-1] if path.suffix == ".json" and path.name == "trainer_state.json" else parts
    return "/".join(part for part in folder[-2:] if part != "/")
