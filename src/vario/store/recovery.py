"""Recover what a dead session left: cut torn tails, turn live streams into parts, find the last step."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vario.core.errors import RunCorrupt
from vario.core.run_files.parquet import read_footer
from vario.core.run_files.streams import read_stream_bytes
from vario.core.run_format import LIVE, PART, ROLLUPS, current_parts, part_name, part_range

LIVE_DEPTH, PART_DEPTH, ROLLUP_DEPTH = 2, 3, 4
"""How many levels below the run's folder live streams, parts and rollups are."""
ROLLUP = re.compile(r"(\d+)-(\d+)-(\d+)\.parquet")
"""Level, first and last part."""


def part_path(rank_folder: Path, quantity: str, number: int) -> Path:
    """Return the path of a closed part before it is compacted."""
    return rank_folder / quantity / part_name(number, "arrow")


def recover(rank_folder: Path) -> tuple[dict[str, int], list[Path]]:
    """Turn leftover live streams into parts; return the highest part number per quantity and the parts to compact."""
    highest: dict[str, int] = {}
    for folder in sorted(entry for entry in rank_folder.iterdir() if entry.is_dir()):
        if parts := _parts(folder):
            # Rollups may outlive deleted parts: the numbers of those parts are not used again.
            highest[folder.name] = max(*(last for _, last in parts), _last_rolled_up(rank_folder, folder.name))
    for stream in sorted(rank_folder.glob(f"*{LIVE}")):
        quantity = stream.name.removesuffix(LIVE)
        number, whole_bytes = _whole_batches(stream)
        if number is None or _is_part(rank_folder / quantity, number):
            stream.unlink()
            continue
        os.truncate(stream, whole_bytes)
        part = part_path(rank_folder, quantity, number)
        part.parent.mkdir(exist_ok=True)
        os.rename(stream, part)
        highest[quantity] = max(number, highest.get(quantity, 0))
    return highest, _not_compacted(rank_folder)


def _not_compacted(rank_folder: Path) -> list[Path]:
    waiting = []
    for unfinished in rank_folder.glob("*/part-*.tmp"):
        unfinished.unlink()
    for folder in sorted({path.parent for path in rank_folder.glob("*/part-*")}):
        remove_superseded(folder)
        waiting += sorted(folder.glob("part-*.arrow"))
    return waiting


def remove_superseded(folder: Path) -> None:
    """Remove the parts of a quantity whose rows are in another file too."""
    names = [name for name in os.listdir(folder) if PART.fullmatch(name)]
    current = {name for _, _, name in current_parts(names)}
    for name in names:
        if name not in current:
            (folder / name).unlink(missing_ok=True)


def _parts(folder: Path) -> list[tuple[int, int]]:
    """Return the first and last number of each file."""
    return [found for name in os.listdir(folder) if (found := part_range(name)) is not None]


def _last_rolled_up(rank_folder: Path, quantity: str) -> int:
    names = (path.name for path in (rank_folder / ROLLUPS / quantity).glob("*.parquet"))
    return max((int(match[3]) for name in names if (match := ROLLUP.fullmatch(name))), default=0)


def _is_part(folder: Path, number: int) -> bool:
    return folder.is_dir() and any(first <= number <= last for first, last in _parts(folder))


def _whole_batches(stream: Path) -> tuple[int | None, int]:
    """Return the part number in a stream's schema (None: no whole batch) and where its last whole batch ends."""
    source = pa.BufferReader(read_stream_bytes(stream, LIVE_DEPTH))
    end = 0
    try:
        reader = pa.ipc.MessageReader.open_stream(source)
        while True:
            if reader.read_next_message().type == "record batch":
                end = source.tell()
    except (StopIteration, pa.ArrowException, OSError):
        # The normal end of a stream, or a torn tail: everything before `end` is whole.
        if end == 0:
            return None, 0
    source.seek(0)
    metadata = pa.ipc.open_stream(source).schema.metadata or {}
    if b"vario.part" not in metadata:
        raise RunCorrupt(f"{stream}: an Arrow stream that vario did not write")
    return int(metadata[b"vario.part"]), end


def last_step(rank_folder: Path, sessions: list[dict[str, Any]]) -> int | None:
    """Return the last step these sessions recorded and none of them took back."""
    last: dict[int, int] = defaultdict(lambda: -1)
    for path in (*rank_folder.glob(f"*{LIVE}"), *rank_folder.glob("*/part-*.arrow"), *rank_folder.glob("*/*.parquet")):
        try:
            session, step = _last_of_parquet(path) if path.suffix == ".parquet" else _last_of_stream(path)
        except FileNotFoundError:
            continue  # its rank has compacted it meanwhile; another file has its rows
        except pa.ArrowException as error:
            raise RunCorrupt(f"{path}: {error}") from error
        last[session] = max(last[session], step)
    shown = -1
    for session, step in last.items():
        if session < len(sessions):
            taken_back_from = min((later["first_step"] for later in sessions[session + 1 :]), default=step + 1)
            shown = max(shown, min(step, taken_back_from - 1))
    return shown if shown >= 0 else None


def _last_of_parquet(path: Path) -> tuple[int, int]:
    metadata: Any = read_footer(path, PART_DEPTH)
    position = metadata.schema.names.index("step")
    groups = (metadata.row_group(index).column(position).statistics for index in range(metadata.num_row_groups))
    last = max((group.max for group in groups if group is not None and group.has_min_max), default=-1)
    return int((metadata.metadata or {}).get(b"vario.session", b"0")), int(last)


def _last_of_stream(path: Path) -> tuple[int, int]:
    last = -1
    session = 0
    content = read_stream_bytes(path, LIVE_DEPTH if path.name.endswith(LIVE) else PART_DEPTH)
    try:
        reader = pa.ipc.open_stream(content)
        session = int((reader.schema.metadata or {}).get(b"vario.session", b"0"))
        for batch in reader:
            if batch.num_rows:
                last = max(last, pc.max(batch.column("step")).as_py())
    except (pa.ArrowException, OSError, EOFError):
        return session, last  # a torn tail ends the stream
    return session, last
