"""Import another tool's recording as a run that every command can read.

DIR is msprobe's MONITOR_OUTPUT_DIR, or the folder of one rank in it.
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
    """Add the source and the destination."""
    parser.add_argument("source", metavar="DIR", help="folder that the other tool wrote")
    parser.add_argument("--from", dest="tool", choices=("msprobe",), required=True, help="the tool that wrote it")
    parser.add_argument("--name", metavar="TEXT", help="name of the run (default: msprobe- and its start time)")
    parser.add_argument(
        "--directory",
        metavar="DIR",
        default=shared.DEFAULT_DIRECTORY,
        help=f"folder for the run (default: {shared.DEFAULT_DIRECTORY})",
    )
    parser.add_argument(
        "--time-start", metavar="TAG", help="only folders started at or after this time, such as Dec03_21-34-40"
    )
    parser.add_argument("--time-end", metavar="TAG", help="only folders started at or before this time")
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
