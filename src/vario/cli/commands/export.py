"""Export a run as CSV or Parquet tables, or as one HTML file.

Tables: one file per rank and quantity, one row per tensor and step, one column per statistic. The HTML file opens
without a server or a network. Nothing is overwritten without --force.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError, RunError

EXAMPLES = """
vario export --format csv
vario export vario_runs/demo --format csv --quantity gradient --output gradients.csv
vario export vario_runs/demo --format parquet --output tables --force
vario export vario_runs/demo --html report.html
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, the format and the destination."""
    shared.add_run(parser)
    parser.add_argument("--format", choices=("csv", "parquet"), help="format of the tables")
    parser.add_argument("--html", metavar="FILE", help="write one HTML file with overview, heat maps and alerts")
    parser.add_argument("--quantity", metavar="Q", help="only this quantity")
    parser.add_argument(
        "--output", metavar="PATH", help="destination folder or file (default: NAME_FORMAT in the current folder)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the files."""
    from rich.progress import Progress

    from vario.reports.export import plan_export
    from vario.runs.files.merged_parts import thinned_text

    found = shared.find_run(arguments.run)
    if (arguments.format is None) == (arguments.html is None):
        raise ConfigError("export: expected --format (tables) or --html (one file)")
    if arguments.html is not None:
        return _write_page(found.path, arguments)
    plan = plan_export(found, arguments.format, arguments.quantity, arguments.output, arguments.force)
    written = []
    talk = output.stderr()
    with Progress(console=talk, transient=True, disable=not talk.is_terminal) as progress:
        task = progress.add_task("exporting", total=len(plan.files))
        for file in plan.write():
            written.append(file)
            progress.update(task, advance=1, description=file.path.name)
    for name in dict.fromkeys(file.quantity for file in written):
        if text := thinned_text(name, found.thinned(name)):
            output.say(text, to_stderr=True)
    if arguments.json:
        output.print_json(written)
    else:
        for file in written:
            output.say(f"{file.path}  {file.num_rows} rows")
    return 0


def _write_page(run: Path, arguments: argparse.Namespace) -> int:

    from vario.web.pages.report import report_html

    place = Path(arguments.html)
    if arguments.quantity is not None or arguments.output is not None:
        raise ConfigError(
            "--html: cannot be combined with --quantity or --output; the file contains everything that was recorded"
        )
    if os.path.exists(place) and not arguments.force:
        raise RunError(f"{place} already exists. Add --force to overwrite it.")
    text = report_html(run).encode()
    unfinished = place.with_name(place.name + ".tmp")
    try:
        unfinished.write_bytes(text)
        os.replace(unfinished, place)
    except OSError as error:
        raise RunError(f"{place}: cannot be written: {error.strerror}") from error
    if arguments.json:
        output.print_json({"path": place, "num_bytes": len(text)})
    else:
        output.say(f"{place}  {len(text)} bytes")
    return 0
