"""Find a History at any path: a file of a known format, a checkpoint, or a folder that contains some."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vario.core.errors import RunCorrupt, RunError, RunNotFound
from vario.core.text import suggestion
from vario.logs import LogFormat, formats
from vario.logs.checkpoints import NAME, list_checkpoints, read_checkpoint, read_latest
from vario.logs.history import History, Note
from vario.logs.joining import is_same_run, join
from vario.logs.own_runs import is_run, vario_run
from vario.logs.text_files import decoded, read_text, written_at
from vario.logs.trainer_state import FILE

MAX_DEPTH = 4
"""How many levels of subfolders to search: `outputs/run/lightning_logs/version_0` is three."""
SAMPLE_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 28
SKIPPED = ("__pycache__", "node_modules", "site-packages", "checkpoint-", ".", "global_step")
"""Prefixes of folders that contain no logs."""
TEXTS_TRIED = 20
OTHERS_NAMED = 3


@dataclass(frozen=True)
class Place:
    """A log that was found but not read yet."""

    format: LogFormat | None
    """None for the output folder of a Trainer, with checkpoints."""
    path: Path
    written: float

    @property
    def folder(self) -> Path:
        """The folder it is in, or the folder itself."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def order(self) -> int:
        """The lower, the more informative."""
        return 0 if self.format is None else self.format.order

    def read(self) -> History:
        """Read it."""
        return read_latest(self.path) if self.format is None else self.format.read(self.path)


def find_history(path: str | os.PathLike[str]) -> History:
    """Read the history at a path: a log file, a checkpoint, a run, or a folder that contains any of them."""
    try:
        return _find(Path(path))
    except OSError as error:
        raise RunNotFound(f"{error.filename or path}: cannot be read: {error.strerror}") from error


def _find(place: Path) -> History:
    if place.name == FILE and NAME.fullmatch(place.absolute().parent.name):
        place = place.parent
    if os.path.isfile(place):
        return read_file(place)
    if not os.path.isdir(place):
        if os.path.exists(place):
            raise RunNotFound(f"{place}: neither a file nor a folder. Save the output of a pipe to a file first.")
        raise RunNotFound(_nowhere(place))
    if NAME.fullmatch(place.absolute().name) and os.path.isfile(place / FILE):
        return read_checkpoint(place)
    if not os.path.isfile(place / FILE) and is_run(place):
        return vario_run.read(place)
    return _read_folder(place)


def read_file(path: Path) -> History:
    """Read the history in one file, whose format is known from its name or its content."""
    found = format_of(path)
    if found is not None:
        return found.read(path)
    raise RunNotFound(f"{path}: unknown log format. Known: {', '.join(f.name for f in formats())}.")


def format_of(path: Path) -> LogFormat | None:
    """Return the format of a file; None if it is unknown."""
    by_name = [each for each in formats() if each.knows(path)]
    for each in by_name:
        # A plain name is unambiguous; a pattern such as *.log is only a hint.
        if each.looks_right is None or not any("*" in pattern for pattern in each.patterns):
            return each
    others = [each for each in formats() if each not in by_name]
    sample = _sample(path)
    if not sample.strip():
        raise RunCorrupt(f"{path}: the file is empty")
    if "\0" in sample:
        return None
    is_all = path.stat().st_size <= SAMPLE_BYTES
    for text in [sample] if is_all or path.stat().st_size > MAX_TEXT_BYTES else [sample, read_text(path)]:
        for each in (*by_name, *others):
            if each.looks_right is not None and each.looks_right(text):
                return each
    return None


def _sample(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return decoded(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise RunCorrupt(f"{path}: cannot be read: {error.strerror}") from error


def _read_folder(folder: Path) -> History:
    places = sorted(_places(folder), key=_newest_last, reverse=True)
    if not places:
        raise RunNotFound(_nothing_in(folder))
    newest = places[0]
    # Logs above or below the newest one are about the same run; read the most informative of them.
    group = sorted((place for place in places if _is_related(place, newest)), key=lambda place: place.order)
    main, history = _first_readable(group or [newest])
    seen = {main.order}
    for other in group:
        if other.order in seen:
            continue
        seen.add(other.order)
        try:
            found = other.read()
        except RunError:
            continue  # optional: without it some details are missing
        if is_same_run(history, found):
            history = join(history, found)
        elif is_same_run(history, found) is False and other.written > main.written:
            # A job restarted here and has not reached its first checkpoint yet.
            stale = Note("older_run", {"path": str(main.path), "step": history.step or 0})
            main, history = other, dataclasses.replace(found, notes=(*found.notes, stale))
    elsewhere = [place for place in places if place not in group]
    if elsewhere:
        named = ", ".join(str(place.path.relative_to(folder)) for place in elsewhere[:OTHERS_NAMED])
        more = ", ..." if len(elsewhere) > OTHERS_NAMED else ""
        note = Note("others_found", {"count": len(elsewhere), "places": named + more, "read": str(main.path)})
        history = dataclasses.replace(history, notes=(*history.notes, note))
    return history


def _newest_last(place: Place) -> tuple[float, int, list[tuple[int, str]]]:
    """Sort key. Copies may have equal times: then the most informative is first, and version_10 before version_9."""
    words = re.findall(r"(\d+)|(\D+)", str(place.path))
    return place.written, -place.order, [(int(digits or 0), text) for digits, text in words]


def _first_readable(places: list[Place]) -> tuple[Place, History]:
    errors = []
    for place in places:
        try:
            return place, place.read()
        except RunError as error:
            errors.append(error)
    raise errors[0]


def _is_related(first: Place, second: Place) -> bool:
    return first.folder.is_relative_to(second.folder) or second.folder.is_relative_to(first.folder)


def _places(folder: Path) -> Iterator[Place]:
    """Every log in a folder and its subfolders. Skips what is deleted meanwhile, such as old checkpoints."""

    def complain(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    texts: list[Path] = []
    for current, folders, files in os.walk(folder, onerror=complain):
        here = Path(current)
        has_state = FILE in files and (here / FILE).is_file()
        if has_state or any(NAME.fullmatch(name) for name in folders):
            complete, unfinished = list_checkpoints(here)
            states = [each.written for each in complete]
            states += [written_at(here / FILE)] if has_state else []
            if states or unfinished:
                yield Place(None, here, max(states, default=0.0))
        yield from _named_logs(here, [name for name in files if name != FILE], texts)
        depth = len(here.relative_to(folder).parts)
        folders[:] = [name for name in folders if depth < MAX_DEPTH and not name.startswith(SKIPPED)]
    for path in sorted(texts, key=written_at, reverse=True)[:TEXTS_TRIED]:
        try:
            found = format_of(path)
        except RunError:
            continue  # empty or unreadable: its name alone says little
        if found is not None and found.knows(path):
            yield Place(found, path, written_at(path))


def _named_logs(folder: Path, names: list[str], texts: list[Path]) -> Iterator[Place]:
    """The logs of one folder that are known by name; files whose content decides are added to `texts`."""
    whole: set[str] = set()
    for name in names:
        path = folder / name
        claim = next((each for each in formats() if each.knows(path)), None)
        if claim is None or not path.is_file():
            continue  # a pipe would block, and a link may be dangling
        if claim.whole_folder:
            if claim.name not in whole:
                whole.add(claim.name)
                yield Place(claim, folder, max(map(written_at, folder.glob(claim.patterns[0]))))
        elif any("*" in pattern for pattern in claim.patterns):
            texts.append(path)
        else:
            yield Place(claim, path, written_at(path))


def _nowhere(place: Path) -> str:
    parent = place.parent
    names = [entry.name for entry in parent.iterdir()] if os.path.isdir(parent) else []
    if not names:
        return f"{place}: no such file or folder"
    return f"{place}: no such file or folder. In {parent}: {suggestion(place.name, names)}"


def _nothing_in(folder: Path) -> str:
    return (
        f"{folder}: no checkpoint, log or run in it or up to {MAX_DEPTH} levels below. "
        "Looked for checkpoint-N/trainer_state.json, event files, metrics.csv, trainer_log.jsonl and text logs."
    )
