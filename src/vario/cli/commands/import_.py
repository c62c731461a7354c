"""Turn what another tool recorded into a run that every command reads.

DIR is what msprobe knows as MONITOR_OUTPUT_DIR, or the folder of one rank in it.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output
from vario.cli.typed_names import named_as_typed

EXAMPLES = """
vario import --from msprobe monitor_output
vario import --from msprobe monitor_output --name pretraining --time-start Dec03_21-34-40
vario import --from msprobe monitor_output/Dec03_21-34-40-rank0-1a2b3c4d --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add what to import and where to."""
    parser.add_argument("source", metavar="DIR", help="folder that the other tool wrote")
    parser.add_argument("--from", dest="tool", choices=("msprobe",), required=True, help="which tool that was")
    parser.add_argument("--name", metavar="TEXT", help="name of the run (default: msprobe- and when it began)")
    parser.add_argument(
        "--directory",
        metavar="DIR",
        default=shared.DEFAULT_DIRECTORY,
        help=f"folder that holds runs (default: {shared.DEFAULT_DIRECTORY})",
    )
    parser.add_argument("--time-start", metavar="TAG", help="only folders begun then or later, like Dec03_21-34-40")
    parser.add_argument("--time-end", metavar="TAG", help="only folders begun then or before")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Import the files."""
    from vario.compat.msprobe.importing import import_msprobe

    with named_as_typed():
        done = import_msprobe(
            arguments.source, arguments.directory, arguments.name, arguments.time_start, arguments.time_end
        )
    if arguments.json:
        output.print_json(done)
    else:
        output.say(done.line)
    return 0
