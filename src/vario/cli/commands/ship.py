"""Copy a run, or all runs in a folder, to where they should lie: an object store, another host, another folder.

What is there already is not sent again, so the command finishes what another one began: it can be stopped or killed at
any moment. A run that is being written can be read there meanwhile; `--follow` goes on until it has ended. Credentials
are those of the service's own tools. See docs/remote.md.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from vario.cli import arguments as shared
from vario.cli import output
from vario.cli.output import say
from vario.core.errors import RunNotFound
from vario.core.text import size

EXAMPLES = """
vario ship vario_runs/first s3://bucket/runs
vario ship vario_runs sftp://gateway/data/runs --rate 20MB
vario ship first s3://bucket/runs --follow --delete-local
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, the place and how."""
    parser.add_argument("run", metavar="RUN", help="folder of a run, its name under vario_runs, or a folder of runs")
    parser.add_argument("url", metavar="URL", help="folder of runs elsewhere, in which the run gets its name")
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("--rate", metavar="BYTES", help="send at most so much per second, such as 20MB")
    parser.add_argument("--own-ranks", action="store_true", help="only ranks of this host: others ship theirs")
    parser.add_argument(
        "--delete-local", action="store_true", help="delete the run here once it has ended and everything is there"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="as a training starts it: at a lower priority, and only one for each run"
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ship, and return 1 if not everything is there."""
    from vario.core.urls import checked_url, is_url
    from vario.remote.shipping import shipper
    from vario.remote.sizes import read_size

    url = checked_url(arguments.url) if is_url(arguments.url) else arguments.url
    rate = None if arguments.rate is None else read_size(arguments.rate, "--rate")
    done: list[dict[str, Any]] = []
    if arguments.quiet:
        os.nice(5)  # a training comes first
    for folder in shipper.find_runs(_folder(arguments.run, arguments.follow), wait=arguments.follow):
        shipper.check_target(folder, url)
        shipping = shipper.Shipper(folder, url, rate, arguments.own_ranks)
        with shipper.only_one(folder, shipping.target, wait=not arguments.quiet) as is_held:
            if not is_held:
                continue
            tell = _log if arguments.quiet else _say
            is_there = shipping.follow(tell) if arguments.follow else shipping.once(tell)
            done.append({"run": folder, "target": shipping.target, "is_complete": is_there})
            done[-1] |= {"num_files": shipping.num_files, "num_bytes": shipping.num_bytes}
            if is_there:
                what = f"{shipping.num_files} files, {size(shipping.num_bytes)}"
                tell(f"{folder} is at {shipping.target} ({what} sent)")
            if is_there and arguments.delete_local:
                shipping.delete_local()
                tell(f"{folder}: deleted here")
    if arguments.json:
        output.print_json(done)
    return 0 if all(one["is_complete"] for one in done) else 1


def _folder(name: str, wait: bool) -> Path:
    places = (Path(name), Path(shared.DEFAULT_DIRECTORY) / name)
    for folder in places:
        if os.path.isdir(folder):
            return folder
    if wait and os.path.isdir(places[0].parent):
        return places[0]  # it may be about to begin
    raise RunNotFound(f"{name}: no such folder")


def _say(text: str) -> None:
    say(f"vario: {text}", to_stderr=True)


def _log(text: str) -> None:
    import time

    say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", to_stderr=True)
