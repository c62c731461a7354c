"""Check who may write a run's folder, and write the JSON files beside the rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core import run_files, run_format
from vario.core.errors import RunTaken, RunTooNew
from vario.core.process.processes import is_gone, this_process
from vario.core.run_files import shapes
from vario.core.run_files.shapes import read_json
from vario.core.run_header import RunHeader
from vario.store.follow_log import FOLDER
from vario.store.holding import Number, hold, refuse_held
from vario.store.rank_agreement import ATTEMPTS, Proposal, agree, note_taken, publish
from vario.store.recovery import last_step

RANK_FOLDER = re.compile(r"rank\d+")
SESSION = "session"
"""`session-<n>.json`: where the ranks of a job agree on a session and its first step."""
JOB = "job.json"
"""Names the job with several ranks that started the run, for its other ranks and for other jobs."""
SESSION_FILE = re.compile(r"\.?session-(\d+)\.json.*|\.?job\.json.*|\.now-.*")


@dataclass(frozen=True)
class Claim:
    """What exists in the run's folder, and how this session continues it."""

    session: int
    sessions: list[dict[str, Any]]
    """The sessions before this one."""
    run: dict[str, Any] | None
    """`run.json` as found."""
    first_step: int = 0
    """Number of the first step of this session, the same on all ranks."""
    dropped_steps: int = 0
    """Steps this rank dropped in earlier sessions."""
    number: Number = (0, 0)
    """The claim of this process, see holding.py."""


def leading_rank(header: RunHeader) -> int:
    """Return the rank that writes `run.json`: 0, or the lowest one that records."""
    return int(min(header.config.get("ranks") or [0]))


def claim(header: RunHeader) -> Claim:
    """Claim this rank of the run. Raises RunError if it may not be written, OSError if that cannot be determined."""
    folder = header.path / f"rank{header.rank}"
    agreed: tuple[int, int] | None = None
    for _ in range(ATTEMPTS):
        # In this order: a process that takes the run after our check takes the number that we are about to take.
        # Several ranks agree once; a single one checks again what a faster process has left.
        if header.resume and (agreed is None or header.world_size == 1):
            agreed = _next_session(header)
        run = _read_run(header.path)
        own = read_json(folder / run_format.RANK, 2, shapes.RANK_STATUS)
        if not header.resume:
            _refuse_taken(header, run, own)
        free = refuse_held(header.path, folder, own, header.may_start_again)
        session, first_step = agreed = agreed or _first_session(header)
        if (number := hold(folder, session, free)) is not None:
            dropped = 0 if own is None else int(own.get("dropped_steps") or 0)
            before = run if header.resume or header.rank != leading_rank(header) else None
            return Claim(session, _sessions_before(session, header), before, first_step, dropped, number)
    raise RunTaken(f"{header.path}: another process is starting this run right now.")


def _first_session(header: RunHeader) -> tuple[int, int]:
    first_step = header.first_step or 0
    if header.world_size > 1:
        path = header.path / JOB
        os.makedirs(header.path, exist_ok=True)
        publish(path, _session(header, first_step))
        _refuse_other_job(header, read_json(path, 1, shapes.SESSION) or {})
    note_taken(header.path, SESSION, header.rank, 0)
    return 0, first_step


def _session(header: RunHeader, first_step: int) -> dict[str, Any]:
    return {"first_step": first_step, "started": header.started, "job": header.job, **this_process()}


def _refuse_other_job(header: RunHeader, session: dict[str, Any]) -> None:
    """Raise if another job has begun this session: ranks of two jobs would each write half of a run."""
    theirs, ours = session.get("job"), header.job
    if theirs is not None and ours is not None and theirs != ours and is_gone(session) is not True:
        raise RunTaken(
            f"{header.path}: another job, {theirs}, has started this run. Choose another name, or stop that job first."
        )


def _next_session(header: RunHeader) -> tuple[int, int]:
    """Return number and first step of the new session, as determined by the first rank to arrive.

    Only the first rank can determine them: once a rank has opened the session, `run.json` and the latest rows may
    belong to this session or to the previous one, and nothing tells which.
    """

    def propose(_: Proposal | None = None) -> dict[str, Any]:
        return _session(header, _first_step(header))

    if header.world_size == 1:
        return _num_sessions(header.path), int(propose()["first_step"])
    entry = agree(
        header.path,
        SESSION,
        header.rank,
        propose,
        lowest=lambda: _num_sessions(header.path),
        may_start_again=header.may_start_again,
    )
    assert entry.content is not None
    _refuse_other_job(header, entry.content)
    # A trainer that numbers its steps knows better than the files, on every rank.
    return entry.number, int(entry.content["first_step"]) if header.first_step is None else header.first_step


def _num_sessions(path: Path) -> int:
    """Count the sessions so far, also those a rank began without the leading rank."""
    run = _read_run(path) or {}
    counts = [len(run.get("sessions") or [])]
    for entry in os.listdir(path) if path.is_dir() else []:
        if match := re.fullmatch(SESSION + r"-(\d+)\.json", entry):
            counts.append(int(match[1]) + 1)
        elif RANK_FOLDER.fullmatch(entry):
            rank = read_json(path / entry / run_format.RANK, 2, shapes.RANK_STATUS)
            counts.append(0 if rank is None else int(rank.get("session") or 0) + 1)
    return max(counts)


def _sessions_before(session: int, header: RunHeader) -> list[dict[str, Any]]:
    run = _read_run(header.path) or {}
    sessions = list(run.get("sessions") or [])[:session]
    for number in range(len(sessions), session):
        # The leading rank died before it wrote it.
        found = read_json(header.path / f"{SESSION}-{number}.json", 1, shapes.SESSION) or {}
        began = {"first_step": int(found.get("first_step", 0)), "started": found.get("started", header.started)}
        sessions.append(began)
    return sessions


def _first_step(header: RunHeader) -> int:
    """Return the requested step, or the one after the last recorded by the leading rank, or by any if it has none."""
    if header.first_step is not None:
        return header.first_step
    sessions = _sessions_before(_num_sessions(header.path), header)
    last = last_step(header.path / f"rank{leading_rank(header)}", sessions)
    if last is None:
        others = [last_step(folder, sessions) for folder in header.path.glob("rank*")]
        last = max((step for step in others if step is not None), default=None)
    return 0 if last is None else last + 1


def _refuse_taken(header: RunHeader, run: dict[str, Any] | None, own: dict[str, Any] | None) -> None:
    advice = "Choose another name, or resume it with resume = true (--resume)."
    leads = header.rank == leading_rank(header)
    if own is not None or (run is not None and leads):
        raise RunTaken(f"{header.path}: this folder already contains a run. {advice}")
    if run is not None and run.get("world_size") != header.world_size:
        raise RunTaken(f"{header.path}: this folder contains another run. {advice}")
    if header.path.is_dir():
        for entry in sorted(os.listdir(header.path)):
            # `vario follow` may have been here before the last rank.
            is_ours = entry == FOLDER or entry.startswith(run_format.RUN) or SESSION_FILE.fullmatch(entry) is not None
            if not is_ours and not RANK_FOLDER.fullmatch(entry):
                raise RunTaken(
                    f"{header.path}: this folder contains '{entry}', which is not part of a run. Choose another name."
                )


def _read_run(path: Path) -> dict[str, Any] | None:
    found = read_json(path / run_format.RUN, 1, {"format": int})
    if found is not None and int(found.get("format", 0)) > run_format.NEWEST_FORMAT:
        raise RunTooNew(f"{path}: written by a newer vario (format {found['format']}); pip install -U vario")
    if found is not None:
        shapes.check_shape(path / run_format.RUN, found, shapes.RUN)
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file atomically: a reader sees the old or the new one, never half of it."""
    write_texts(path, [json.dumps(content, indent=1, default=str)])


def write_texts(path: Path, pieces: Iterable[str]) -> None:
    """Replace a file atomically with these pieces of text and a line feed."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with open(unfinished, "w", encoding="utf8", opener=run_files.no_links) as file:
            file.writelines(pieces)
            file.write("\n")
        os.replace(unfinished, path)
    except OSError:
        # A full disk leaves an empty file behind; the folder itself may be missing.
        if unfinished.exists():
            unfinished.unlink()
        raise
