"""How a run fares: the JSON files beside its rows."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.errors import RunCorrupt, RunTooNew
from vario.runs.pieces import FORMAT

RANK = re.compile(r"rank(\d+)")

STALLED_SECONDS = 600.0
"""A run that says it is running but wrote nothing for this long has stalled."""


@dataclass(frozen=True)
class PartOff:
    """A part of the monitor that failed and was switched off."""

    rank: int
    part: str
    step: int | None
    error: str


@dataclass(frozen=True)
class RankState:
    """How one rank fares."""

    rank: int
    host: str
    state: str
    """running, finished, interrupted, crashed (it could still say so), died (it could not), stalled, or left: it took
    part in an earlier session only."""
    last_step: int | None
    error: str | None
    coordinates: dict[str, int]
    """Where it stands in the mesh."""
    ended: float | None = None
    """Unix seconds, by the clock of its host; None where it could not say."""
    victim_of: int | None = None
    """The rank whose failure took this one down: its launcher stopped it, or it lost its peer in a collective."""


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, be it one whose leading rank has not come to describe it."""
    return (folder / "run.json").is_file() or any(folder.glob("rank*/rank.json"))


def read_run_json(folder: Path) -> dict[str, Any]:
    """The content of `run.json`, or what the ranks tell where there is none; refuses what is damaged or too new."""
    content = read_json(folder / "run.json")
    if content is None:
        content = _as_told_by_ranks(folder)
    version = content.get("format")
    if not isinstance(version, int):
        raise RunCorrupt(f"{folder / 'run.json'}: has no format number")
    if version > FORMAT:
        raise RunTooNew(f"{folder}: written by a newer vario (format {version}); pip install -U vario")
    return content


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunCorrupt(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise RunCorrupt(f"{path}: expected an object, found {type(content).__name__}")
    return content


def read_ranks(folder: Path) -> list[dict[str, Any]]:
    """The content of every `rank.json`, lowest rank first."""
    found = filter(None, map(RANK.fullmatch, os.listdir(folder)))
    ranks = sorted((int(match[1]), match[0]) for match in found)
    contents = [(rank, read_json(folder / name / "rank.json")) for rank, name in ranks]
    return [{**content, "rank": rank} for rank, content in contents if content is not None]


def _as_told_by_ranks(folder: Path) -> dict[str, Any]:
    ranks = read_ranks(folder)
    if not ranks:
        raise RunCorrupt(f"{folder / 'run.json'}: has vanished")
    opened = min(float(rank.get("opened") or 0) for rank in ranks)
    is_over = all(rank.get("state") in ("finished", "interrupted") for rank in ranks)
    num_sessions = 1 + max(int(rank.get("session") or 0) for rank in ranks)
    return {
        "format": FORMAT,
        "started": opened,
        "ended": max(float(rank.get("ended") or 0) for rank in ranks) if is_over else None,
        "state": "finished" if is_over else "running",
        "world_size": max(int(rank.get("world_size") or 1) for rank in ranks),
        "sessions": [
            read_json(folder / f"session-{number}.json") or {"first_step": 0, "started": opened}
            for number in range(num_sessions)
        ],
    }


def sessions(folder: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """First step and start of each session, also of one that the leading rank has not written down yet."""
    known = list(run.get("sessions") or [])
    while known and (begun := read_json(folder / f"session-{len(known)}.json")) is not None:
        known.append(begun)
    return known


def in_session(ranks: list[dict[str, Any]], session: int) -> list[dict[str, Any]]:
    """The ranks that take part in a session: a job that was started again may have fewer than before."""
    return [rank for rank in ranks if rank.get("session", session) == session]


def state(folder: Path, run: dict[str, Any], ranks: list[dict[str, Any]], now: float | None = None) -> str:
    """running, finished, interrupted, crashed or stalled: what the files say, and this machine's processes."""
    begun = sessions(folder, run)
    present = in_session(ranks, len(begun) - 1)
    # What is written there may be the end of the session before.
    said = run.get("state") if len(run.get("sessions") or []) == len(begun) else "running"
    if said == "crashed" or any(rank.get("state") == "crashed" for rank in present):
        return "crashed"
    if any(rank.get("state") == "interrupted" for rank in present):
        return "interrupted"  # others may have been killed before they could say anything
    if said != "running":
        return str(said)
    if any(_is_dead(rank) for rank in present):
        return "crashed"
    now = time.time() if now is None else now
    return "stalled" if now - _last_sign(folder) > STALLED_SECONDS else "running"


def rank_states(folder: Path, ranks: list[dict[str, Any]], session: int, now: float | None = None) -> list[RankState]:
    """How each rank fares, in the session that is the latest, as far as `rank.json` tells."""
    now = time.time() if now is None else now
    states = []
    for rank in ranks:
        said = str(rank.get("state"))
        if rank not in in_session(ranks, session):
            said = "left"
        elif _is_dead(rank):
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


def _is_dead(rank: dict[str, Any]) -> bool:
    pid = rank.get("pid")
    if rank.get("state") != "running" or rank.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _last_sign(folder: Path, rank: str = "rank*") -> float:
    signs = [*folder.glob(f"{rank}/rank.json"), *folder.glob(f"{rank}/*.live.arrow")]
    if rank == "rank*":
        signs += [folder / "run.json", *folder.glob("session-*.json")]
    times = [0.0]
    for sign in signs:
        try:
            times.append(sign.stat().st_mtime)
        except FileNotFoundError:
            continue  # became a part since we looked
    return max(times)
