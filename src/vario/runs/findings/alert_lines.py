"""The alert and incident lines of a run: parsed, validated, and without what a later session discarded."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vario.core.run_files import open_file
from vario.core.run_files.columns import MOST_STEP
from vario.core.run_format import ALERTS, INCIDENTS, RULE_MEMORY
from vario.core.text import reason
from vario.rules.api.alerts import SEVERITIES, STAGES, Alert, Incident
from vario.runs.files.folder import RunFolder

log = logging.getLogger("vario")

WATCH = "watch"
"""The folder in which `vario follow` stores what it found."""

LINES_DEPTH = 2
MOST_LINES_BYTES = 64 << 20
MOST_LINE_BYTES = 1 << 20

Found = TypeVar("Found")
Sessions = Sequence[Mapping[str, Any]]


def has_alerts(run: RunFolder) -> bool:
    """Whether anything was stored, without reading it."""
    folders = [*(f"rank{rank}" for rank in run.ranks), WATCH]
    return any(os.path.lexists(os.path.join(run.path, folder, ALERTS)) for folder in folders)


def has_trace_of_rules(run: RunFolder) -> bool:
    """Whether rules ran on a run: they store their findings, and at the end their memory."""
    kept = (os.path.join(run.path, f"rank{rank}", RULE_MEMORY) for rank in run.ranks)
    return has_alerts(run) or any(map(os.path.lexists, kept))


def alert_lines(run: RunFolder) -> Iterator[tuple[str, Alert, bool]]:
    """Return all stored alerts with their folder, and whether their line says which incident they belong to."""
    for folder, (alert, is_grouped) in _parsed(run, ALERTS, lambda plain: (checked_alert(plain), "incident" in plain)):
        yield folder, alert, is_grouped


def incident_lines(run: RunFolder) -> Iterator[tuple[str, Incident]]:
    """Return the incidents that each rank and `vario follow` stored, with their folder."""
    return _parsed(run, INCIDENTS, _incident)


def _parsed(run: RunFolder, name: str, parse: Callable[[Mapping[str, Any]], Found]) -> Iterator[tuple[str, Found]]:
    """Parse all files of this name, without what a later session discarded and without invalid lines."""
    sessions = run.sessions
    for folder, plain, session in _lines(run, name):
        try:
            if not _is_taken_back(plain, sessions, session):
                yield folder, parse(plain)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            log.warning("%s: skipped a line of %s: %s", run.path, name, reason(error))


def checked_alert(plain: Mapping[str, Any]) -> Alert:
    """Parse an alert; raises if no rule can have written it."""
    return _checked(Alert.from_json(plain))


def _incident(plain: Mapping[str, Any]) -> Incident:
    """Parse an incident; raises if no detector can have written it."""
    found = Incident.from_json(plain)
    for alert in (found.lead, *found.alerts, *(() if found.raised_by is None else (found.raised_by,))):
        _checked(alert)
    words = (found.cause, found.advice, found.scope, found.id, found.stage)
    _check_words(*words, *(word for word in (found.place, found.chart) if word is not None))
    if found.stage not in ("", *STAGES):
        raise ValueError(f"unknown stage {found.stage!r:.40}")
    _check_severity(found.severity)
    return found


def _checked(found: Alert) -> Alert:
    target = "" if found.target is None else found.target
    _check_words(
        *(found.rule, found.quantity, found.text, found.statistic, found.kind, found.scope, target),
        *(found.part, found.label, found.incident, *found.others),
    )
    for whole in (found.step, found.micro_step, found.stage, found.rank, found.since, found.unseen_from):
        # Null means "all ranks" and "from this step"; other false values are invalid.
        if whole is not None and not (isinstance(whole, int) and -1 <= whole <= MOST_STEP):
            raise TypeError(f"{whole!r:.40} is not a valid step, rank or number")
    if found.step is None:
        raise TypeError("it has no step")
    if not 0 <= found.stage < len(STAGES):
        raise ValueError(f"there is no stage {found.stage}")
    _check_severity(found.severity)
    return found


def _check_words(*words: object) -> None:
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"{word!r:.40}: expected text")


def _check_severity(severity: object) -> None:
    if severity not in SEVERITIES:
        raise ValueError(f"unknown severity {severity!r:.40}")


def _lines(run: RunFolder, name: str) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """The lines of all files of this name, and the session of each unless the line says it."""
    written_in = {found["rank"]: int(found.get("session") or 0) for found in run.rank_contents}
    for rank in run.ranks:
        for plain in read_lines(run.path / f"rank{rank}" / name):
            yield f"rank{rank}", plain, written_in.get(rank, 0)
    for plain in read_lines(run.path / WATCH / name):
        yield WATCH, plain, 0


def _is_taken_back(plain: Mapping[str, Any], sessions: Sessions, session: int) -> bool:
    """Whether a later session resumed from before this line; a rank truncates its own file when it resumes."""
    later = sessions[int(plain.get("session", session)) + 1 :]
    return any(int(plain["step"]) >= int(begun["first_step"]) for begun in later)


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a JSON lines file; skips a line that is incomplete."""
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
                log.warning("%s: too long; everything after line %d is skipped", path, number)
                return


def _object(path: Path, number: int, line: bytes, is_whole: bool) -> Mapping[str, Any] | None:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        if is_whole:
            log.warning("%s, line %d: incomplete, skipped", path, number)
        return None
    return plain if isinstance(plain, dict) and "step" in plain else None
