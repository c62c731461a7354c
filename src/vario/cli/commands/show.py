"""Show one statistic over steps: a plot for one target, a table for several.

PATTERN is a name, a glob or re:expression; RUN may come before or after it. Default quantity: the first that has such a
target. Numbers you logged are targets too: try `vario show loss`. With --table or --figure, PATTERN is the name that it
was logged with.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError
from vario.core.text import number, suggestion, unknown
from vario.core.urls import is_url

if TYPE_CHECKING:
    from rich.console import Console

    from vario.runs.reader import Rank, Series
    from vario.runs.run import Run

EXAMPLES = """
vario show loss
vario show loss vario_runs/demo
vario show 'layers.*.weight' --quantity gradient --statistic norm
vario show vario_runs/demo 'blocks.2.*' --quantity activation --statistic absmax --plot
vario show vario_runs/demo 'head.weight' --last 20 --json
vario show examples --table
vario show confusion --figure --step 300
"""

PREFERENCE = ("scalar", "gradient", "weight", "activation", "activation_gradient", "moment")
NUMBERS_SHOWN = 5


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the targets and the output options."""
    shared.add_run(parser)
    parser.add_argument("pattern", metavar="PATTERN", help="which targets: a name, a glob or re:expression")
    parser.add_argument("--quantity", metavar="Q", help="which tensor of the target, for example gradient")
    parser.add_argument(
        "--statistic", metavar="S", help="which statistic, for example norm, absmax, nans (default: norm)"
    )
    parser.add_argument("--rank", type=_rank, metavar="N", help="only this rank; `all` merges the ranks (default)")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N points")
    parser.add_argument("--plot", action="store_true", help="plot every curve")
    parser.add_argument("--log", action="store_true", help="logarithmic axis (default: when a curve spans decades)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--table", action="store_true", help="print a table that was kept with log_table")
    kinds.add_argument("--figure", action="store_true", help="print where the PNG of a figure kept with log_figure is")
    parser.add_argument("--step", type=int, metavar="N", help="the step of that table or figure (default: latest)")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the curves."""
    from vario.runs.files.merged_parts import thinned_text
    from vario.runs.files.run_paths import is_found

    name, pattern = arguments.run, arguments.pattern
    if name is None and (os.path.isdir(pattern) or is_url(pattern)):
        # `vario show RUN`: the only argument was the run.
        name, pattern = pattern, "*"
    elif name is not None and not is_found(name) and is_found(pattern):
        # `vario show PATTERN RUN`: most tools take the file last.
        name, pattern = pattern, name
    found = shared.find_run(name)
    if arguments.table or arguments.figure:
        show_attached(found, pattern, arguments)
        return 0
    curves = choose(found, pattern, arguments.quantity, arguments.statistic, arguments.rank)
    curves = [cut(series, arguments.last) for series in curves]
    for text in dict.fromkeys(thinned_text(series.quantity, series.thinned) for series in curves):
        if text:
            output.say(text, to_stderr=True)
    if arguments.json:
        output.print_json(curves)
    elif arguments.plot or len(curves) == 1:
        for series in curves:
            print_plot(output.stdout(), series, arguments.log)
    else:
        print_table(output.stdout(), curves, arguments.log)
    return 0


def show_attached(run: Run, name: str, arguments: argparse.Namespace) -> None:
    """Print a table, or where a figure is."""
    from rich.table import Table
    from rich.text import Text

    rank = arguments.rank if isinstance(arguments.rank, int) else None
    if arguments.figure:
        path = run.figure_path(name, arguments.step, rank)
        if arguments.json:
            output.print_json({"figure": str(path)})
        else:
            output.stdout().print(str(path), markup=False, soft_wrap=True)
        return
    found = run.table(name, arguments.step, rank)
    if arguments.json:
        output.print_json(found)
        return
    table = Table(box=None, pad_edge=False)
    for at, column in enumerate(found.columns):
        is_number = all(isinstance(row[at], (int, float)) for row in found.rows)
        table.add_column(Text(column), justify="right" if is_number else "left")
    for row in found.rows:
        table.add_row(*(Text(number(value) if isinstance(value, float) else str(value)) for value in row))
    output.stdout().print(table)
    if found.num_rows > len(found.rows):
        output.stdout().print(f"the first {len(found.rows)} of {found.num_rows:,} rows", style="dim")


def _rank(text: str) -> int | str:
    if text != "all" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number or 'all', got '{text}'")
    return text if text == "all" else int(text)


def choose(run: Run, pattern: str, quantity: str | None, statistic: str | None, rank: Rank | None) -> list[Series]:
    """Return the series of every matching target, or raise an error that names the closest target."""
    from vario.core.elements.bins import QUANTITY as DISTRIBUTION
    from vario.core.quantities import LOSS
    from vario.runs.views.status.losses import read_losses

    if not run.ranks:
        raise ConfigError(f"{run.path}: nothing recorded yet")
    rank = "all" if rank is None else rank
    recorded = run.quantities(rank)
    if quantity == DISTRIBUTION:
        raise ConfigError("--quantity: a distribution is no curve. See `vario precision RUN --tensor NAME`.")
    if quantity is not None and quantity not in recorded:
        raise ConfigError(unknown("--quantity", quantity, recorded))
    ranked = [name for name in PREFERENCE if name in recorded]
    ranked += [name for name in recorded if name not in ranked]
    for candidate in [quantity] if quantity else ranked:
        targets = run.targets(candidate, pattern, rank)
        if targets:
            wanted = statistic or ("value" if candidate == "scalar" else "norm")
            return [run.series(target, candidate, wanted, rank) for target in targets]
    if pattern == LOSS and quantity in (None, "scalar") and (losses := read_losses(run)):
        # Under another name: the script's own, or the one vario found because none was logged.
        return [run.series(loss.target, "scalar", "value", rank) for loss in losses]
    known = run.targets(quantity, rank=rank)
    raise ConfigError(f"'{pattern}' matches no target of {quantity or 'this run'}. {suggestion(pattern, known)}")


def cut(series: Series, last: int | None) -> Series:
    """Keep only the last points."""
    import dataclasses

    if last is None or last >= len(series.steps):
        return series
    kept: dict[str, Any] = {
        name: getattr(series, name)[len(series.steps) - last :] for name in ("steps", "micro_steps", "values")
    }
    return dataclasses.replace(series, **kept)


def title(series: Series) -> str:
    """Return the title of a curve."""
    from vario.runs.views.status.losses import FOUND

    if series.quantity == "scalar":
        return series.target + (" (found by vario)" if series.target.startswith(FOUND) else "")
    return f"{series.quantity} {series.statistic} of {series.target}"


def print_plot(console: Console, series: Series, log: bool) -> None:
    """Print a plot and its last values."""
    from vario.reports.terminal_plot import line_plot, spans_decades
    from vario.runs.views.downsample import downsample

    steps, values = downsample(series.steps, series.values, 2000)
    log = log or spans_decades(values)
    console.print(title(series) + (" (logarithmic)" if log else ""), markup=False, style="bold")
    width = min(console.width, 100)
    console.print(line_plot(steps, values, width=width, log=log), markup=False, soft_wrap=True)
    shown = zip(series.steps[-NUMBERS_SHOWN:], series.values[-NUMBERS_SHOWN:], strict=True)
    numbers = "  ".join(f"{step}: {number(float(value))}" for step, value in shown)
    console.print(f"last: {numbers}\n", markup=False, soft_wrap=True)


def print_table(console: Console, curves: list[Series], log: bool) -> None:
    """Print the first, lowest, highest and last value of each curve, and its shape."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    from vario.reports.terminal_plot import spans_decades, sparkline

    one = curves[0]
    heading = one.quantity if one.quantity == "scalar" else f"{one.quantity} {one.statistic}"
    table = Table(heading, box=None, pad_edge=False)
    for name in ("first", "min", "max", "last"):
        table.add_column(name, justify="right")
    table.add_column("curve", no_wrap=True)
    for series in curves:
        values = series.values
        if not len(values):
            continue
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
        cells = [number(value) for value in (float(values[0]), low, high, float(values[-1]))]
        table.add_row(Text(series.target), *cells, sparkline(values, log=log or spans_decades(values)))
    console.print(table)
