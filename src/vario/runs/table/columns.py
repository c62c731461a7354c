"""Columns of a table of runs: facts of a run, hyper-parameters, and figures of any logged number.

A name is looked up as a fact (`state`), a hyper-parameter (also by its last part: `lr` finds `optimizer.lr`), then as a
logged number (`val_loss`, its last value). `val_loss:best` is one figure of it, `params.lr` a hyper-parameter only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vario.core.errors import ConfigError
from vario.core.text import suggestion
from vario.runs.table.summary import RunSummary
from vario.runs.views.status.courses import Course, is_better_higher

Value = str | float | int | bool | None
Kind = Literal["number", "text", "seconds", "time", "bytes", "share", "state"]
Source = Literal["run", "params", "number"]

PARAMS = "params."
FIGURES = ("last", "best", "first", "min", "max")
"""Of a logged number, the usual one first."""
MOST_SUGGESTED = 400
_OWN = re.compile(
    r"(_seconds|_bytes|_seen|^lr|^overhead|^total_steps|^loader_workers)$"
    r"|^(batch_|clip_|gradient_|interval/|loss_backward|lr/|machine/|micro_|model_flops|peak_flops)"
)
"""Numbers that vario records by itself: they are listed after those that were logged."""

_FACTS: dict[str, tuple[Kind, Callable[[RunSummary], Value]]] = {
    "name": ("text", lambda run: run.title),
    "tags": ("text", lambda run: ", ".join(run.note.tags) or None),
    "note": ("text", lambda run: run.note.text or None),
    "star": ("text", lambda run: run.note.is_starred or None),
    "archived": ("text", lambda run: run.note.is_archived or None),
    "run": ("text", lambda run: run.run),
    "state": ("state", lambda run: run.brief.state),
    "started": ("time", lambda run: run.brief.started or None),
    "duration": ("seconds", lambda run: run.seconds),
    "step": ("number", lambda run: run.brief.pace.step),
    "total_steps": ("number", lambda run: run.brief.pace.total_steps),
    "progress": ("share", lambda run: run.brief.pace.progress),
    "loss": ("number", lambda run: run.brief.loss),
    "alerts": ("number", lambda run: run.incidents["page"] + run.incidents["warn"]),
    "pages": ("number", lambda run: run.incidents["page"]),
    "memory": ("bytes", lambda run: run.memory_bytes),
    "steps_per_second": ("number", lambda run: run.brief.pace.steps_per_second),
    "ranks": ("number", lambda run: run.brief.world_size),
    "host": ("text", lambda run: run.brief.host or None),
    "command": ("text", lambda run: run.brief.command or None),
    "commit": ("text", lambda run: run.brief.commit[:12] or None),
    "branch": ("text", lambda run: run.brief.branch or None),
    "error": ("text", lambda run: run.brief.error),
    "group": ("text", lambda run: run.group),
}
"""Facts of a run, by name."""


@dataclass(frozen=True)
class Column:
    """One column."""

    key: str
    """Its name as it was written."""
    title: str
    kind: Kind
    source: Source
    read: Callable[[RunSummary], Value]
    is_better_higher: bool | None = None
    """Of a figure of a number; None where nothing is better."""


@dataclass(frozen=True)
class Known:
    """A column that can be chosen."""

    key: str
    kind: Kind
    source: Source
    differs: bool
    """Whether runs differ in it."""


class Columns:
    """The columns that some runs can have."""

    def __init__(self, runs: Sequence[RunSummary]) -> None:
        self._runs = runs
        self._params = dict.fromkeys(name for run in runs for name in run.brief.params)
        self._numbers = dict.fromkeys(name for run in runs for name in run.brief.numbers)

    def find(self, key: str, where: str = "columns") -> Column:
        """Return the column of a name; raises ConfigError with the closest one."""
        name = key.strip()
        if name in _FACTS:
            kind, read = _FACTS[name]
            better = False if name == "loss" else True if name == "steps_per_second" else None
            return Column(name, name.replace("_", " "), kind, "run", read, better)
        number, _, figure = name.rpartition(":")
        if figure in FIGURES and number in self._numbers:
            return self._number(name, number, figure)
        word, _, rest = name.partition(" ")
        if word in FIGURES and rest in self._numbers:
            return self._number(f"{rest}:{word}", rest, word)  # the title of that column
        if (param := self._param(name)) is not None:
            return self._setting(name, param)
        if name in self._numbers:
            return self._number(name, name, "last")
        if number == "loss" and figure in FIGURES:
            return self.find("loss", where)  # one that vario found
        known = [*_FACTS, *self._params, *self._numbers]
        raise ConfigError(f"{where}: no run has '{name}'. {suggestion(name, known)}")

    def known(self) -> list[Known]:
        """Return all that can be chosen: facts, hyper-parameters, numbers; of each kind what matters most first."""
        facts = [Known(name, kind, "run", self._differ(read)) for name, (kind, read) in _FACTS.items()]
        params = [self._known(PARAMS + name if name in _FACTS else name, "params") for name in self._params]
        numbers = [self._known(name, "number") for name in self._numbers if not name.startswith("setting/")]
        params.sort(key=lambda each: not each.differs)
        numbers.sort(key=lambda each: _OWN.search(each.key) is not None)
        return [*facts, *params, *numbers][:MOST_SUGGESTED]

    def settings(self) -> list[Column]:
        """Return the hyper-parameters in which these runs differ."""
        found = [self._setting(name, name) for name in self._params]
        return [column for column in found if self._differ(column.read)]

    def _known(self, name: str, source: Source) -> Known:
        column = self.find(f"{name}:last" if source == "number" else name)
        return Known(name, column.kind, source, self._differ(column.read))

    def _differ(self, read: Callable[[RunSummary], Value]) -> bool:
        return len({repr(read(run)) for run in self._runs}) > 1

    def _param(self, name: str) -> str | None:
        is_only = name.startswith(PARAMS)
        wanted = name.removeprefix(PARAMS)
        if wanted in self._params:
            return wanted
        ends = [known for known in self._params if known.endswith(f".{wanted}")]
        if len(ends) > 1:
            ends = [known for known in ends if self._differ(self._setting(known, known).read)] or ends
        return ends[0] if ends and (is_only or len(ends) == 1) else None

    def _setting(self, key: str, param: str) -> Column:
        values = [run.brief.params.get(param) for run in self._runs]
        is_number = all(_is_number(value) for value in values if value is not None) and any(map(_is_number, values))
        title = param if key == param or param.endswith(f".{key}") else key
        return Column(key, title, "number" if is_number else "text", "params", lambda run: _setting_of(run, param))

    def _number(self, key: str, number: str, figure: str) -> Column:
        kind: Kind = "number"
        if number.endswith("_bytes"):
            kind = "bytes"
        elif number.endswith("_seconds"):
            kind = "seconds"
        is_higher = is_better_higher(number)
        title = f"{figure} {number}"
        return Column(
            key,
            title,
            kind,
            "number",
            lambda run: figure_of(run.brief.numbers.get(number), figure, is_higher),
            is_higher,
        )


def figure_of(course: Course | None, figure: str, is_higher: bool) -> float | None:
    """Return one figure of a number; None if the run has not logged it."""
    if course is None:
        return None
    if figure == "best":
        figure = "max" if is_higher else "min"
    return {"last": course.last, "first": course.first, "min": course.lowest, "max": course.highest}[figure]


def _setting_of(run: RunSummary, param: str) -> Value:
    value = run.brief.params.get(param)
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def order_key(value: Value) -> tuple[int, float, str]:
    """A key that sorts values of a column: numbers, then texts; what is missing or NaN comes last."""
    if isinstance(value, (int, float)):
        return (2, 0.0, "") if math.isnan(value) else (0, float(value), "")
    return (3, 0.0, "") if value is None else (1, 0.0, str(value).lower())
