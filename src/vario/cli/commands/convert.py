"""Convert msprobe's CSV files to TensorBoard event files or an SQLite database.

DIR is msprobe's MONITOR_OUTPUT_DIR: folders named TIME-rankN-ID. Lines that cannot be parsed are skipped and listed.
Nothing is overwritten.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vario.cli import arguments as shared
from vario.cli import output
from vario.cli.typed_names import named_as_typed

if TYPE_CHECKING:
    from vario.compat.msprobe.conversion import Conversion

EXAMPLES = """
vario convert --to tensorboard monitor_output
vario convert --to tensorboard monitor_output --types grad_reduced,param_origin --processes 8 --output events
vario convert --to sqlite monitor_output --time-start Dec03_21-34-40 --time-end Dec03_21-34-42
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the folder, the output format and filters."""
    parser.add_argument("directory", metavar="DIR", help="folder that msprobe wrote")
    parser.add_argument("--to", choices=("tensorboard", "sqlite"), required=True, help="output format")
    parser.add_argument(
        "--time-start", metavar="TAG", help="only folders started at or after this time, such as Dec03_21-34-40"
    )
    parser.add_argument("--time-end", metavar="TAG", help="only folders started at or before this time")
    parser.add_argument("--types", metavar="A,B", help="only these types of files, by full name")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="number of worker processes (default: 1)")
    parser.add_argument("--output", metavar="DIR", help="folder for the output (default: a new one in DIR)")
    parser.add_argument(
        "--step-partition", type=int, default=500, metavar="N", help="sqlite: steps per table (default: 500)"
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Convert the files."""
    with named_as_typed():
        done = _convert(arguments)
    if arguments.json:
        output.print_json(done)
    else:
        output.say(done.line)
    return 0


def _convert(arguments: argparse.Namespace) -> Conversion:
    kinds = [kind.strip() for kind in arguments.types.split(",")] if arguments.types else None
    chosen = (arguments.directory, arguments.time_start, arguments.time_end, arguments.processes, kinds)
    if arguments.to == "tensorboard":
        from vario.compat.msprobe.to_tensorboard import convert_to_tensorboard

        return convert_to_tensorboard(*chosen, arguments.output)
    from vario.compat.msprobe.to_sqlite import CSV2DBConfig, convert_to_sqlite

    return convert_to_sqlite(CSV2DBConfig(*chosen, arguments.step_partition, arguments.output))
