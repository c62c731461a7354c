"""Write a run's numbers as CSV or Parquet tables, one file per rank and quantity.

Each row is one tensor at one step, with every statistic in a column. Nothing is overwritten without --force.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared

EXAMPLES = """
vario export --format csv
vario export vario_runs/demo --format csv --quantity gradient --output gradients.csv
vario export vario_runs/demo --format parquet --output tables --force
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, the format and the place."""
    shared.add_run(parser)
    parser.add_argument("--format", choices=("csv", "parquet"), required=True, help="kind of file: csv or parquet")
    parser.add_argument("--quantity", metavar="Q", help="only this quantity")
    parser.add_argument(
        "--output", metavar="PATH", help="folder for the files, or one file (default: <name>_<format> right here)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the files."""
    from rich.progress import Progress

    from vario.cli import output
    from vario.reports.export import plan_export

    found = shared.find_run(arguments.run)
    plan = plan_export(found, arguments.format, arguments.quantity, arguments.output, arguments.force)
    written = []
    talk = output.stderr()
    with Progress(console=talk, transient=True, disable=not talk.is_terminal) as progress:
        task = progress.add_task("exporting", total=len(plan.files))
        for file in plan.write():
            written.append(file)
            progress.update(task, advance=1, description=file.path.name)
    if arguments.json:
        output.print_json(written)
    else:
        for file in written:
            print(f"{file.path}  {file.num_rows} rows")
    return 0
