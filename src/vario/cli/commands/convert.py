"""Turn msprobe's CSV files into TensorBoard event files or an SQLite database.

DIR is what msprobe knows as MONITOR_OUTPUT_DIR: folders named TIME-rankN-ID. Lines that cannot be understood
are left out and named. Nothing is overwritten.
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
    """Add the folder, the kind of output and the choice of files."""
    parser.add_argument("directory", metavar="DIR", help="folder that msprobe wrote")
    parser.add_argument("--to", choices=("tensorboard", "sqlite"), required=True, help="what to make of it")
    parser.add_argument("--time-start", metavar="TAG", help="only folders begun then or later, like Dec03_21-34-40")
    parser.add_argument("--time-end", metavar="TAG", help="only folders begun then or before")
    parser.add_argument("--types", metavar="A,B", help="only these types of files, by their whole names")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="how many processes work (default: 1)")
    parser.add_argument("--output", metavar="DIR", help="folder for the output (default: a new one in DIR)")
    parser.add_argument(
        "--step-partition", type=int, default=500, metavar="N", help="sqlite: steps in one table (default: 500)"
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
