"""Name, tag, star, archive or delete runs, and write down what you think of them.

Notes are kept in `.vario/notes.json` beside the runs, never in them. A deleted run goes to `.vario/trash`, from where
`--restore` brings it back; to free the disk, remove that folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError

EXAMPLES = """
vario note demo
vario note demo --title 'lower rate' --tag good --text 'converges, but slowly' --star
vario note demo --archive
vario note demo --delete
vario note demo --restore
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, and what to say about it."""
    parser.add_argument("run", metavar="RUN", help="folder of a run, or its name under vario_runs")
    parser.add_argument("--title", metavar="TEXT", help="a name to show instead of the folder's; empty: none")
    parser.add_argument("--tag", metavar="WORD", action="append", default=[], help="add a tag; repeatable")
    parser.add_argument("--untag", metavar="WORD", action="append", default=[], help="remove a tag; repeatable")
    parser.add_argument("--text", metavar="TEXT", help="the note; empty: none")
    parser.add_argument("--star", action=argparse.BooleanOptionalAction, help="star it, or not")
    parser.add_argument("--archive", action=argparse.BooleanOptionalAction, help="hide it from lists, or not")
    parser.add_argument("--delete", action="store_true", help="move it to the trash; asks twice")
    parser.add_argument("--restore", action="store_true", help="bring a run of this name back from the trash")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Change and show the note of a run."""
    from vario.runs.notes.keeping import move_to_trash, restore, write_note
    from vario.runs.notes.notes import note_of, read_notes

    if arguments.restore:
        return _done(arguments, {"restored": restore(*_place(arguments.run))})
    found = shared.find_run(arguments.run)
    folder = found.path.resolve()
    if arguments.delete:
        if not arguments.yes:
            _ask_twice(folder.name)
        return _done(arguments, {"trash": move_to_trash(folder)})
    note = note_of(read_notes(folder.parent), folder.name, found.id)
    changes: dict[str, Any] = {}
    if arguments.tag or arguments.untag:
        changes["tags"] = [tag for tag in [*note.tags, *arguments.tag] if tag not in arguments.untag]
    given = {"title": arguments.title, "text": arguments.text}
    given |= {"is_starred": arguments.star, "is_archived": arguments.archive}
    changes |= {key: value for key, value in given.items() if value is not None}
    if changes:
        note = write_note(folder, changes)
    return _done(arguments, {"run": found.path, **output.plain(note)})


def _place(name: str) -> tuple[Path, str]:
    """The folder whose trash has a run, and the run's name there."""
    place = Path(name)
    is_path = place.parent != Path(".") or not Path(shared.DEFAULT_DIRECTORY).is_dir()
    return (place.parent if is_path else Path(shared.DEFAULT_DIRECTORY)), place.name


def _ask_twice(name: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("--delete: asks twice, and there is nobody at the terminal. Add --yes.")
    if input(f"Move {name} to the trash? [y/N] ").strip().lower() not in ("y", "yes"):
        raise ConfigError("--delete: not confirmed; nothing was changed")
    if input("Type its name to confirm: ").strip() != name:
        raise ConfigError("--delete: another name; nothing was changed")


def _done(arguments: argparse.Namespace, told: dict[str, Any]) -> int:
    if arguments.json:
        output.print_json(told)
        return 0
    for key, value in told.items():
        text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        if text and value is not False:
            output.say(f"{key.removeprefix('is_')}: {text}")
    return 0
