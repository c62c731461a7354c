"""The state of a run, from the JSON files beside its rows."""

from __future__ import annotations

import logging
import re
import stat
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vario.core import run_format
from vario.core.errors import RunCorrupt, RunTooNew
from vario.core.process.processes import is_gone
from vario.core.run_files import entries_of, shapes
from vario.core.run_files.mirrors import mirror_of
from vario.core.run_files.shapes import read_json
from vario.runs.files.listing_cache import cached_listing

log = logging.getLogger("vario")

RANK = re.compile(r"rank(0|[1-9][0-9]{0,6})")

MOST_SESSIONS = 10_000

STALLED_SECONDS = 600.0
"""A run that is marked as running but wrote nothing for this long has stalled."""


@dataclass(frozen=True)
class PartOff:
    """A part of the monitor that failed and was switched off."""

    rank: int
    part: str
    step: int | None
    error: str


@dataclass(frozen=True)
class NotOffered:
    """A quantity that was to be watched, and what the model's framework does not offer for it."""

    quantity: str
    missing: str


@dataclass(frozen=True)
class RankState:
    """The state of one rank."""

    rank: int
    host: str
    state: str
    """running, finished, interrupted, crashed (with an error), died (without one), stalled, or left (only took part in
    an earlier session)."""
    last_step: int | None
    error: str | None
    coordinates: dict[str, int]
    """Its coordinates in the device mesh."""
    ended: float | None = None
    """Unix seconds by its host's clock; None if it could not write it."""
    victim_of: int | None = None
    """The rank whose failure took this one down: its launcher stopped it, or it lost its peer in a collective."""


def is_run(folder: Path) -> bool:
    """Whether a folder contains a run, even one that the leading rank has not described yet."""
    try:
        return (folder / run_format.RUN).is_file() or any(folder.glob(f"rank*/{run_format.RANK}"))
    except (OSError, ValueError):
        return False  # not a possible file name, or unreadable


@cached_listing
def read_run_json(folder: Path) -> dict[str, Any]:
    """Read `run.json`, or derive its content from the ranks if it is missing; raises if it is damaged or too new."""
    content = read_json(folder / run_format.RUN, 1)
    if content is None:
        content = _as_told_by_ranks(folder)
    version = content.get("format")
    if not isinstance(version, int):
        raise RunCorrupt(f"{folder / run_format.RUN}: has no format number")
    if version > run_format.NEWEST_FORMAT:
        raise RunTooNew(f"{folder}: written by a newer vario (format {version}); pip install -U vario")
    shapes.check_shape(folder / run_format.RUN, content, shapes.RUN)
    return content


@cached_listing
def rank_numbers(folder: Path) -> list[int]:
    """Return the ranks that have a folder; skips links, with a warning."""
    found = []
    with entries_of(folder, 0) as entries:
        for entry in entries:
            if (match := RANK.fullmatch(entry.name)) is None:
                continue
            if entry.is_dir(follow_symlinks=False):
                found.append(int(match[1]))
            else:
                _warn_of(folder / entry.name)
    return sorted(found)


def has_rank(folder: Path, rank: int) -> bool:
    """Whether a rank has a folder."""
    try:
        return stat.S_ISDIR((folder / f"rank{rank}").lstat().st_mode)
    except (OSError, ValueError):
        return False


@cache
def _warn_of(path: Path) -> None:
    log.warning("%s: skipped: a link or a file, not the folder of a rank", path)


def read_ranks(folder: Path) -> list[dict[str, Any]]:
    """Read every `rank.json`, lowest rank first."""
    contents = [(rank, read_rank(folder, rank)) for rank in rank_numbers(folder)]
    return [{**content, "rank": rank} for rank, content in contents if content is not None]


@cached_listing
def read_rank(folder: Path, rank: int) -> dict[str, Any] | None:
    """Read one `rank.json`."""
    return read_json(folder / f"rank{rank}" / run_format.RANK, 2, shapes.RANK_STATUS)


def _as_told_by_ranks(folder: Path) -> dict[str, Any]:
    ranks = read_ranks(folder)
    if not ranks:
        raise RunCorrupt(f"{folder / run_format.RUN}: no longer exists")
    opened = min(float(rank.get("opened") or 0) for rank in ranks)
    is_over = all(rank.get("state") in ("finished", "interrupted") for rank in ranks)
    num_sessions = 1 + max(min(int(rank.get("session") or 0), MOST_SESSIONS) for rank in ranks)
    return {
        "format": run_format.FORMAT,
        "started": opened,
        "ended": max(float(rank.get("ended") or 0) for rank in ranks) if is_over else None,
        "state": "finished" if is_over else "running",
        "world_size": max(int(rank.get("world_size") or 1) for rank in ranks),
        "sessions": [
            _read_session(folder, number) or {"first_step": 0, "started": opened} for number in range(num_sessions)
        ],
    }


def sessions(folder: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return first step and start time of each session, including one that the leading rank has not recorded yet."""
    known = [{"first_step": 0, **begun} for begun in run.get("sessions") or []]
    while known and (begun := _read_session(folder, len(known))) is not None:
        known.append(begun)
    return known


@cached_listing
def _read_session(folder: Path, number: int) -> dict[str, Any] | None:
    found = read_json(folder / f"session-{number}.json", 1, shapes.SESSION)
    return None if found is None else {"first_step": 0, **found}


def in_session(ranks: list[dict[str, Any]], session: int) -> list[dict[str, Any]]:
    """Return the ranks of a session: a restarted job may have fewer than before."""
    return [rank for rank in ranks if rank.get("session", session) == session]


def state(folder: Path, run: dict[str, Any], ranks: list[dict[str, Any]], now: float | None = None) -> str:
    """Return running, finished, interrupted, crashed or stalled, from the files and this machine's processes."""
    begun = sessions(folder, run)
    present = in_session(ranks, len(begun) - 1)
    # What is written there may be the end of the previous session.
    said = run.get("state") if len(run.get("sessions") or []) == len(begun) else "running"
    if said == "crashed" or any(rank.get("state") == "crashed" for rank in present):
        return "crashed"
    if any(rank.get("state") == "interrupted" for rank in present):
        return "interrupted"  # others may have been killed before they could write anything
    if said != "running":
        return str(said)
    if any(_is_dead(folder, rank) for rank in present):
        return "crashed"
    now = time.time() if now is None else now
    return "stalled" if now - _last_sign(folder) > STALLED_SECONDS else "running"


def rank_states(folder: Path, ranks: list[dict[str, Any]], session: int, now: float | None = None) -> list[RankState]:
    """Return the state of each rank in the latest session, from `rank.json`."""
    now = time.time() if now is None else now
    states = []
    for rank in ranks:
        said = str(rank.get("state"))
        if rank not in in_session(ranks, session):
            said = "left"
        elif _is_dead(folder, rank):
            said = "died"
        elif said == "running" and now - _last_sign(folder, f"rank{rank['rank']}") > STALLED_SECONDS:
            said = "stalled"
        step, error, ended = rank.get("last_step"), rank.get("error"), rank.get("ended")
        states.append(
            RankState(
                rank=int(rank["rank"]),
                host=str(rank.get("host") or ""),
                state=said,
                last_step=None if step is None else int(step),
                error=None if error is None else str(error),
                coordinates=dict(rank.get("coordinates") or {}),
                ended=None if ended is None else float(ended),
            )
        )
    return states


def _is_dead(folder: Path, rank: dict[str, Any]) -> bool:
    # A copy may be older than the end of the process.
    return mirror_of(folder) is None and rank.get("state") == "running" and is_gone(rank) is True


def _last_sign(folder: Path, rank: str = "rank*") -> float:
    signs = [*folder.glob(f"{rank}/{run_format.RANK}"), *folder.glob(f"{rank}/*{run_format.LIVE}")]
    if rank == "rank*":
        signs += [folder / run_format.RUN, *folder.glob("session-*.json")]
    times = [0.0]
    for sign in signs:
        try:
            times.append(sign.lstat().st_mtime)
        except OSError:
            continue  # became a part in the meantime
    return max(times)
