"""Bring the ranks of one job together that lie on many hosts, each in a folder of its own.

A second call copies only what is new, also while the job is running. It refuses folders of different jobs, and goes on
without a host that cannot be reached. See docs/remote.md.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output
from vario.cli.output import say
from vario.core.text import size

EXAMPLES = """
vario gather sftp://node1/scratch/vario_runs/run1 sftp://node2/scratch/vario_runs/run1 vario_runs/run1
vario gather /mnt/node*/vario_runs/run1 s3://bucket/runs/run1
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the sources and the destination."""
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="run folders or URLs with ranks of one job")
    parser.add_argument("destination", metavar="DEST", help="folder or URL of the whole run")
    parser.add_argument("--rate", metavar="BYTES", help="copy at most so much per second, such as 20MB")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Copy what is new; return 1 if a source could not be reached."""
    from vario.remote.shipping.gathering import gather
    from vario.remote.sizes import read_size

    rate = None if arguments.rate is None else read_size(arguments.rate, "--rate")
    found = gather(arguments.sources, arguments.destination, rate, lambda text: say(f"vario: {text}", to_stderr=True))
    if arguments.json:
        output.print_json(vars(found))
    else:
        what = f"{found.num_files} files, {size(found.num_bytes)}"
        say(f"{arguments.destination} has {len(found.ranks)} ranks ({what} copied)")
    return 1 if found.unreachable else 0
