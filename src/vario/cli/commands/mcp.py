"""Answer an AI assistant's questions about runs: a server for the Model Context Protocol (MCP), read-only.

An assistant starts it and asks over stdin and stdout: which runs there are, what went wrong first and why, the numbers
of any series, how two runs differ. It never changes a run. `vario serve` answers the same at /mcp over HTTP, with its
token.
"""

from __future__ import annotations

import argparse
import sys

from vario.cli import arguments as shared
from vario.cli.output import say
from vario.core.errors import MissingExtra

EXAMPLES = """
vario mcp
vario mcp /data/runs
vario mcp /data/runs /data/sweeps
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the folder."""
    shared.add_directories(parser, "a run, or a folder with runs in it or its subfolders")


def run(arguments: argparse.Namespace) -> int:
    """Answer until the assistant goes away."""
    folders = shared.named_folders(arguments.directories)
    try:
        from vario.web.mcp.address import load_protocol
    except ModuleNotFoundError as error:
        # The package of the protocol brings them.
        if (error.name or "").partition(".")[0] in ("starlette", "anyio"):
            raise MissingExtra("the server for assistants", "mcp") from error
        raise
    from vario.web.served import Served

    protocol = load_protocol()
    if sys.stdin.isatty():
        say("Waiting for an assistant at stdin. Press Ctrl-C to stop.", to_stderr=True)
    protocol.serve_stdio(Served(folders))
    return 0
