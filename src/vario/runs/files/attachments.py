"""Read the figures and tables beside a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from vario.core import attachments as kept
from vario.core.attachments import FIGURE, TABLE, Attachment, Table
from vario.core.errors import ConfigError, RunCorrupt
from vario.core.params import plain_or_text
from vario.core.run_files import read_bytes
from vario.core.run_files.shapes import Maybe, Whole, check_shape
from vario.core.run_format import ATTACHMENT_LINES, ATTACHMENTS
from vario.core.text import suggestion

log = logging.getLogger("vario")

MOST_LINES_BYTES = 4 << 20
LINE = {"kind": str, "name": str, "step": Whole(0), "time": Maybe(float), "file": str, "num_bytes": Maybe(Whole(0))}
CONTENT = {"columns": [str], "num_rows": Maybe(Whole(0))}


def read_attachments(path: Path, ranks: Sequence[int]) -> list[Attachment]:
    """Return what is listed, by step; of one that a later session made again, the latest."""
    found: dict[tuple[str, str, int, int], Attachment] = {}
    for rank in ranks:
        for one in _of_rank(path / f"rank{rank}", rank):
            found.pop(key := (one.kind, one.name, one.step, rank), None)
            found[key] = one
    return sorted(found.values(), key=lambda one: one.step)


def _of_rank(rank_folder: Path, rank: int) -> Iterator[Attachment]:
    path = rank_folder / ATTACHMENT_LINES
    try:
        lines = read_bytes(path, 2, MOST_LINES_BYTES).split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):
        return
    # A hostile file may have any number of lines; vario writes at most this many.
    for line in lines[-kept.MOST_FILES :]:
        try:
            plain = json.loads(line)
            check_shape(path, plain if isinstance(plain, dict) else {"kind": plain}, LINE)
            one = Attachment(
                kind=plain["kind"],
                name=plain["name"],
                step=plain["step"],
                time=float(plain["time"] or 0.0),
                file=plain["file"],
                num_bytes=int(plain["num_bytes"] or 0),
                rank=rank,
            )
        except (ValueError, KeyError, TypeError, RecursionError, RunCorrupt) as error:
            log.warning("%s: skipped a line: %s", path, error)
            continue
        ending = f".{kept.ENDINGS.get(one.kind, '')}"
        if one.name and len(one.name) <= kept.MOST_NAME and kept.FILE.fullmatch(one.file) and one.file.endswith(ending):
            yield one


def choose(known: Sequence[Attachment], kind: str, name: str, step: int | None, rank: int | None) -> Attachment:
    """Return the latest attachment of this name, or that of a step; raises ConfigError if there is none."""
    ours = [one for one in known if one.kind == kind and (rank is None or one.rank == rank)]
    named = [one for one in ours if one.name == name]
    if not named:
        raise ConfigError(f"{kind}: no '{name}'. {suggestion(name, {one.name for one in ours})}")
    at = [one for one in named if step is None or one.step == step]
    if not at:
        steps = ", ".join(str(one.step) for one in named[-10:])
        raise ConfigError(f"step: no {kind} '{name}' of step {step}. Steps that have one: {steps}.")
    return at[-1]


def path_of(path: Path, figure: Attachment) -> Path:
    """Return the file of a figure; raises RunCorrupt if it is no PNG."""
    figure_of(path, figure)
    return _place(path, figure)


def _place(path: Path, one: Attachment) -> Path:
    return path / f"rank{one.rank}" / ATTACHMENTS / one.file


def figure_of(path: Path, figure: Attachment) -> bytes:
    """Return the PNG of a figure; raises RunCorrupt if the file is none."""
    content = _content(path, figure, FIGURE)
    if not content.startswith(kept.PNG_START):
        raise RunCorrupt(f"{figure.file}: is no PNG; not shown")
    return content


def table_of(path: Path, table: Attachment) -> Table:
    """Return a table; raises RunCorrupt if its file does not have one."""
    content = _content(path, table, TABLE)
    try:
        plain = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RunCorrupt(f"{table.file}: not readable as JSON: {error}") from None
    if not isinstance(plain, dict):
        raise RunCorrupt(f"{table.file}: expected an object, found {type(plain).__name__}")
    check_shape(table.file, plain, CONTENT)
    columns, rows = plain.get("columns", []), plain.get("rows", [])
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise RunCorrupt(f"{table.file}: 'rows': expected lists")
    if len(columns) > kept.MOST_COLUMNS or len(rows) > kept.MOST_ROWS:
        raise RunCorrupt(f"{table.file}: has {len(columns)} columns and {len(rows)} rows; not read")
    width = len(columns)
    cells = [[plain_or_text(value) for value in [*row, *[None] * width][:width]] for row in rows]
    return Table(columns, cells, int(plain.get("num_rows") or len(rows)))


def _content(path: Path, one: Attachment, kind: str) -> bytes:
    place = _place(path, one)
    try:
        return read_bytes(place, 3, kept.MOST_OF_KIND[kind])
    except (FileNotFoundError, NotADirectoryError):
        raise RunCorrupt(f"{place}: no longer exists") from None
