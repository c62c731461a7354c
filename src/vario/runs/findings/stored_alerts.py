"""What rules found while a run was watched: alerts and incidents of all ranks and of `vario follow`, read back."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vario.core.run_files import open_file
from vario.core.run_files.columns import MOST_STEP
from vario.core.run_format import ALERTS, INCIDENTS
from vario.core.text import reason
from vario.rules import RULES
from vario.rules.api.alerts import SEVERITIES, Alert, Incident
from vario.rules.api.incidents import collect
from vario.runs.files.folder import RunFolder

log = logging.getLogger("vario")

WATCH = "watch"
"""The folder in which a watching process keeps what it found."""

LINES_DEPTH = 2
MOST_LINES_BYTES = 64 << 20
MOST_LINE_BYTES = 1 << 20

Found = TypeVar("Found")
Sessions = Sequence[Mapping[str, Any]]


def read_alerts(run: RunFolder) -> list[Alert]:
    """All alerts that were stored, by step; each once, and none of steps that a resume took back."""
    found: dict[tuple[Any, ...], Alert] = {}
    for alert in _parsed(run, ALERTS, _alert):
        found.setdefault((alert.step, alert.rank, alert.rule, alert.quantity, alert.target, alert.micro_step), alert)
    return sorted(found.values(), key=lambda alert: alert.step)


def read_incidents(run: RunFolder) -> list[Incident]:
    """What the stored alerts come to over all ranks: one cause is one incident, however many ranks told it."""
    alerts = read_alerts(run)
    told = {_lead(incident): incident for incident in told_incidents(run)}
    rules = {found.name: found.part for found in RULES}
    return [_as_told(incident, told.get(_lead(incident))) for incident in collect(alerts, rules)]


def has_alerts(run: RunFolder) -> bool:
    """Whether anything was stored at all, without reading it."""
    folders = [*(f"rank{rank}" for rank in run.ranks), WATCH]
    return any(os.path.lexists(os.path.join(run.path, folder, ALERTS)) for folder in folders)


def told_incidents(run: RunFolder) -> list[Incident]:
    """The incidents as each rank, and a watching process, told them at the time."""
    return list(_parsed(run, INCIDENTS, _incident))


def _lead(incident: Incident) -> tuple[str, int, str | None]:
    return incident.lead.rule, incident.lead.step, incident.lead.target


def _as_told(incident: Incident, told: Incident | None) -> Incident:
    """Of a rule that is not known here only those who ran it could say what it means."""
    if told is None or incident.lead.rule in RULES:
        return incident
    return dataclasses.replace(incident, cause=told.cause, advice=told.advice)


def _parsed(run: RunFolder, name: str, parse: Callable[[Mapping[str, Any]], Found]) -> Iterator[Found]:
    """What all files of this name say, without what a later session took back and without lines nobody understands."""
    sessions = run.sessions
    for plain, session in _lines(run, name):
        try:
            if not _is_taken_back(plain, sessions, session):
                yield parse(plain)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            log.warning("%s: a line of %s was left out: %s", run.path, name, reason(error))


def _alert(plain: Mapping[str, Any]) -> Alert:
    """The alert of a line; refuses one that no rule can have written."""
    return _checked(Alert.from_json(plain))


def _incident(plain: Mapping[str, Any]) -> Incident:
    """The incident of a line; refuses one that no detector can have written."""
    found = Incident.from_json(plain)
    for alert in (found.lead, *found.alerts):
        _checked(alert)
    _check_words(found.cause, found.advice, found.place or "", found.scope)
    _check_severity(found.severity)
    return found


def _checked(found: Alert) -> Alert:
    target = "" if found.target is None else found.target
    _check_words(
        found.rule, found.quantity, found.text, found.statistic, found.kind, found.scope, target, *found.others
    )
    for whole in (found.step, found.micro_step, found.stage, found.rank, found.since):
        # Null stands for "all ranks" and "at once"; nothing else that is false does.
        if whole is not None and not (isinstance(whole, int) and -1 <= whole <= MOST_STEP):
            raise TypeError(f"{whole!r:.40} is not a step, rank or number that can be")
    if found.step is None:
        raise TypeError("it has no step")
    _check_severity(found.severity)
    return found


def _check_words(*words: object) -> None:
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"{word!r:.40} stands where a text has to be")


def _check_severity(severity: object) -> None:
    if severity not in SEVERITIES:
        raise ValueError(f"unknown severity {severity!r:.40}")


def _lines(run: RunFolder, name: str) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The lines of all files of this name, and the session each was written in unless it says so itself."""
    written_in = {found["rank"]: int(found.get("session") or 0) for found in run.rank_contents}
    for rank in run.ranks:
        for plain in read_lines(run.path / f"rank{rank}" / name):
            yield plain, written_in.get(rank, 0)
    for plain in read_lines(run.path / WATCH / name):
        yield plain, 0


def _is_taken_back(plain: Mapping[str, Any], sessions: Sessions, session: int) -> bool:
    """Whether a later session went back before this line; a rank cuts its own file when it goes back."""
    later = sessions[int(plain.get("session", session)) + 1 :]
    return any(int(plain["step"]) >= int(begun["first_step"]) for begun in later)


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a file of JSON lines; a line that is being written, or was when a process died, is passed over."""
    try:
        file = open_file(path, LINES_DEPTH)
    except (FileNotFoundError, NotADirectoryError):
        return
    with file, io.BufferedReader(file) as lines:
        left = MOST_LINES_BYTES
        number = 0
        while line := lines.readline(min(left, MOST_LINE_BYTES)):
            left -= len(line)
            number += 1
            is_whole = line.endswith(b"\n")
            if line.strip() and (plain := _object(path, number, line, is_whole)) is not None:
                yield plain
            if left <= 0 or (len(line) == MOST_LINE_BYTES and not is_whole):
                log.warning("%s: longer than it can be; what comes after line %d is left out", path, number)
                return


def _object(path: Path, number: int, line: bytes, is_whole: bool) -> Mapping[str, Any] | None:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        if is_whole:
            log.warning("%s, line %d: torn, and left out", path, number)
        return None
    return plain if isinstance(plain, dict) and "step" in plain else None
