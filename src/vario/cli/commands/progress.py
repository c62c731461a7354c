"""Show training status from the logs of any trainer.

PATH is a checkpoint, an output folder or a log file. Reads trainer_state.json of the HF Trainer, TensorBoard event
files, Lightning's metrics.csv, LLaMA-Factory's trainer_log.jsonl, text logs of Megatron, DeepSpeed, torchtune and the
Trainer's console output, and vario's runs. Default: print a summary.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError, RunNotFound
from vario.core.text import unknown

if TYPE_CHECKING:
    from vario.reports.progress_words import Language

EXAMPLES = """
vario progress
vario progress --latest --plot --save-plot training_progress.png
vario progress --checkpoint outputs/checkpoint-582 --summary --plot
vario progress --compare outputs/checkpoint-291 outputs/checkpoint-582 --save-plot comparison.png
vario progress lightning_logs --watch
vario progress outputs --json
"""

DEFAULT_OUTPUTS = "./outputs"


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the source and the output options."""
    parser.add_argument("path", metavar="PATH", nargs="?", help="checkpoint, output folder, run or log file to read")
    parser.add_argument("--checkpoint", "-c", metavar="DIR", help="read this checkpoint")
    parser.add_argument(
        "--outputs", "-o", metavar="DIR", default=DEFAULT_OUTPUTS, help=f"output folder (default: {DEFAULT_OUTPUTS})"
    )
    parser.add_argument(
        "--latest", "-l", action="store_true", help="read the latest checkpoint of the output folder (the default)"
    )
    parser.add_argument("--summary", "-u", action="store_true", help="print the summary (the default)")
    parser.add_argument("--plot", "-p", action="store_true", help="show the plot; without a display, in the terminal")
    parser.add_argument("--save-plot", "-s", metavar="PATH", help="write the plot as PNG, SVG or PDF")
    parser.add_argument("--compare", nargs="+", metavar="CP", help="compare checkpoints, runs or log files")
    parser.add_argument("--watch", action="store_true", help="follow a running job until it ends")
    parser.add_argument("--lang", metavar="zh|en", help="language of the summary and plot (default: from the locale)")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the status of a run."""
    language = _language(arguments.lang)
    picture = None if arguments.save_plot is None else Path(arguments.save_plot)
    if picture is not None:
        from vario.reports.plot_style import check_picture_path

        check_picture_path(picture)
    if arguments.compare:
        if arguments.path or arguments.checkpoint or arguments.watch:
            raise ConfigError("progress: --compare cannot be combined with PATH, --checkpoint or --watch")
        return _compare(arguments, language, picture)
    place = _place(arguments)
    if arguments.watch:
        if arguments.json:
            raise ConfigError("progress: --watch cannot be combined with --json. Run it without --watch.")
        if arguments.plot or picture is not None:
            raise ConfigError("progress: --watch cannot be combined with a plot. Run it without --watch.")
        return _watch(place, language)
    return _show(arguments, place, language, picture)


def _show(arguments: argparse.Namespace, place: Path, language: Language, picture: Path | None) -> int:
    from vario.logs.finding import find_history
    from vario.reports.progress import summarise_progress

    history = find_history(place)
    summary = summarise_progress(history)
    wants_plot = arguments.plot or picture is not None
    if arguments.json:
        output.print_json(summary)
    elif arguments.summary or not wants_plot:
        from vario.reports.progress_text import render_progress

        output.stdout().print(render_progress(history, summary, language))
    if wants_plot:
        from vario.cli import pictures

        pictures.show(history, language, picture, arguments.plot and not arguments.json)
    return 0


def _compare(arguments: argparse.Namespace, language: Language, picture: Path | None) -> int:
    from vario.logs.finding import find_history
    from vario.reports.progress_compare import compare

    places = [_existing(Path(name), Path(arguments.outputs)) for name in arguments.compare]
    histories = [find_history(place) for place in places]
    comparison = compare(places, histories)
    if arguments.json:
        output.print_json(comparison)
    else:
        from vario.reports.progress_compare_text import render_comparison

        output.stdout().print(render_comparison(comparison, language))
    if arguments.plot or picture is not None:
        from vario.cli import pictures

        pictures.show_comparison(comparison, histories, language, picture, arguments.plot and not arguments.json)
    return 0


def _watch(place: Path, language: Language) -> int:
    import sys
    import time

    from vario.cli import progress_following
    from vario.logs.finding import find_history

    progress_following.watch(lambda: find_history(place), language, sys.stdout.isatty(), time.sleep)
    return 0


def _place(arguments: argparse.Namespace) -> Path:
    """The source to read: PATH, --checkpoint, or the output folder."""
    if arguments.path and arguments.checkpoint:
        raise ConfigError("progress: give PATH or --checkpoint, not both")
    outputs = Path(arguments.outputs)
    if named := arguments.path or arguments.checkpoint:
        return _existing(Path(named), outputs)
    if not os.path.exists(outputs) and arguments.outputs == DEFAULT_OUTPUTS:
        raise RunNotFound("no folder ./outputs here. Name what to read: `vario progress PATH`.")
    return outputs


def _existing(named: Path, outputs: Path) -> Path:
    """The path as given, or the checkpoint of that name in the output folder."""
    import os

    return outputs / named if not os.path.exists(named) and os.path.exists(outputs / named) else named


def _language(asked: str | None) -> Language:
    import os

    from vario.reports.progress_words import LANGUAGES, language_of

    for language in LANGUAGES:
        if asked == language:
            return language
    if asked is None:
        return language_of(os.environ)
    raise ConfigError(unknown("--lang", asked, LANGUAGES))
