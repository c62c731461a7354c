"""Show where a run comes from: command, code, seeds, environment and packages.

With --diff it prints the changes since the commit, as git does; with --output what the script printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vario.cli import arguments as shared
from vario.cli import output

if TYPE_CHECKING:
    from vario.runs.files.origin import Origin

EXAMPLES = """
vario origin
vario origin vario_runs/demo --packages
vario origin vario_runs/demo --diff > changes.diff
vario origin vario_runs/demo --output
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add what to show."""
    shared.add_run(parser)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--diff", action="store_true", help="print the changes since the commit")
    parts.add_argument("--output", action="store_true", help="print what the script printed: its first and last lines")
    parts.add_argument("--packages", action="store_true", help="list the installed packages too")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show it."""
    from rich.table import Table
    from rich.text import Text

    found = shared.find_run(arguments.run)
    if arguments.diff or arguments.output:
        text = found.code_diff if arguments.diff else found.output
        if arguments.json:
            output.print_json({"diff" if arguments.diff else "output": text})
        else:
            output.stdout().print(text, end="", markup=False, highlight=False, soft_wrap=True)
        return 0
    origin = found.origin
    if arguments.json:
        output.print_json(origin)
        return 0
    table = Table.grid(padding=(0, 3))
    for name, value in facts(origin, found.command):
        table.add_row(Text(name, style="dim"), Text(value))
    if arguments.packages:
        for name, version in origin.packages.items():
            table.add_row(Text(name, style="dim"), Text(version))
    output.stdout().print(table)
    return 0


def facts(origin: Origin, command: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line."""
    yield "command", " ".join(origin.command) or command
    if origin.executable:
        yield "python", origin.executable
        yield "directory", origin.directory
    if origin.commit:
        yield "commit", f"{origin.commit[:12]} ({origin.branch}) {origin.subject}"
        yield "remote", origin.remote or "none"
        yield "changed", ", ".join(origin.changed) or "nothing"
        if origin.untracked:
            yield "untracked", ", ".join(origin.untracked)
    for name, seed in origin.seeds.items():
        yield f"seed of {name}", str(seed)
    yield from origin.environment.items()
    if origin.packages:
        yield "packages", f"{len(origin.packages)} (--packages lists them)"
