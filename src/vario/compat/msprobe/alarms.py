"""msprobe's alarms: AnomalyTurbulence and AnomalyNan over every written statistic, in its own words."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.compat.msprobe.blocks import Block
from vario.compat.msprobe.config import AlertRule
from vario.statistics import Values

log = logging.getLogger("vario")

DECAY = 0.99
"""How much of its history a series keeps at each step."""
MAX_LINES = 20
"""Alarms printed per step; a NaN in one weight is a NaN everywhere a step later."""
DUMP_SECONDS = 1.0
"""`anomaly.json` is rewritten at most this often, and at the end."""


@dataclass(frozen=True)
class Place:
    """Where in the job this process stands."""

    rank: int = 0
    pp_stage: int = 0
    group_mates: Sequence[int] = (0,)


class _History:
    """Running means of the magnitudes of all series with one tag ending."""

    def __init__(self, num_columns: int) -> None:
        self._rows: dict[tuple[str, int], int] = {}
        self._means = np.full((0, num_columns), np.nan)

    def before(self, block: Block) -> Values:
        """Each series' mean before this step, which is the value itself at first; then takes the step in."""
        rows = block.rows
        keys = zip(rows.names, rows.micro_steps or [0] * len(rows.names), strict=True)
        at = np.array([self._rows.setdefault(key, len(self._rows)) for key in keys])
        if len(self._rows) > len(self._means):
            more = np.full((len(self._rows) - len(self._means), self._means.shape[1]), np.nan)
            self._means = np.concatenate([self._means, more])
        size = np.abs(block.values)
        means = np.where(np.isnan(self._means[at]), size, self._means[at])
        # A NaN or Inf taken into the mean would silence the series for good.
        self._means[at] = np.where(np.isfinite(size), DECAY * means + (1 - DECAY) * size, self._means[at])
        return means


class Alarms:
    """Looks at each block as it is written; says what it finds and keeps it for `anomaly_detected/`."""

    def __init__(self, rules: Sequence[AlertRule], place: Place, dump_folder: Path | None) -> None:
        self.rules = rules
        self._place = place
        self._dump = None if dump_folder is None else AnomalyFile(dump_folder / f"rank{place.rank}" / "anomaly.json")
        self._histories: dict[tuple[str, tuple[str, ...]], _History] = {}
        self._num_said = -1, 0

    def look(self, block: Block, step: int) -> None:
        """Check one block."""
        if not self.rules:
            return
        statistics = block.rows.statistics
        key = block.rows.suffix, tuple(statistics)
        history = self._histories.setdefault(key, _History(len(statistics)))
        means = history.before(block)
        found = np.full(block.values.shape, -1)
        with np.errstate(invalid="ignore"):
            for number, rule in enumerate(self.rules):
                found[(found < 0) & _hits(rule, statistics, block.values, means)] = number
        for row, column in np.argwhere(found >= 0):
            rule = self.rules[found[row, column]]
            tag = block.rows.tag(row, self._place.rank)
            message = (
                f"Rule {rule.name} reports anomaly signal in {(tag, statistics[column])} at step {step}, "
                f"current value {float(block.values[row, column])!r}, history mean {float(means[row, column])!r}."
            )
            self._say(step, message)
            if self._dump is not None:
                self._dump.add(self._entry(block, int(row), step, tag, message))

    def _say(self, step: int, message: str) -> None:
        said_at, num_said = self._num_said
        num_said = num_said + 1 if said_at == step else 1
        self._num_said = step, num_said
        if num_said <= MAX_LINES:
            log.warning("> %s", message)
        elif num_said == MAX_LINES + 1:
            log.warning("> more anomalies at step %d are not printed", step)

    def _entry(self, block: Block, row: int, step: int, tag: str, message: str) -> dict[str, Any]:
        stage = block.rows.names[row].partition(":")[0]
        return {
            "rank": self._place.rank,
            "step": step,
            "micro_step": 0 if block.rows.micro_steps is None else block.rows.micro_steps[row],
            "pp_stage": self._place.pp_stage,
            "vpp_stage": int(stage),
            "call_id": block.order[row],
            "tag_name": tag,
            "message": message,
            "group_mates": list(self._place.group_mates),
        }

    def step_ended(self) -> None:
        """Bring the file up to date, if it is time."""
        if self._dump is not None:
            self._dump.write_if_due()

    def close(self) -> None:
        """Write what is not in the file yet."""
        if self._dump is not None:
            self._dump.write()


def _hits(rule: AlertRule, statistics: list[str], values: Values, means: Values) -> npt.NDArray[np.bool_]:
    size = np.abs(values)
    counts_nans = np.array([name == "nans" for name in statistics])
    if rule.name == "AnomalyTurbulence":
        assert rule.threshold is not None
        applies = np.array([name in ("norm", "mean") for name in statistics])
        hits: npt.NDArray[np.bool_] = (size > (1 + rule.threshold) * means) & applies
    else:
        hits = np.isnan(values) | ((values > 0) & counts_nans)
        if rule.threshold is not None:
            hits |= (size > rule.threshold) & ~counts_nans
    return hits


class AnomalyFile:
    """`anomaly.json`: one object, a key per tag and step; an earlier run's entries stay."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, dict[str, Any]] = read_anomalies(path) if path.exists() else {}
        self._is_new = not path.exists()
        self._next_write = 0.0
        self.write()

    def add(self, entry: dict[str, Any]) -> None:
        """Keep one anomaly; several statistics of one tag share an entry."""
        key = f"{entry['tag_name']}_step_{entry['step']}_call_{entry['call_id']}"
        known = self._entries.get(key)
        if known is not None and entry["message"] not in known["message"]:
            entry = {**entry, "message": f"{known['message']} {entry['message']}"}
        self._entries[key] = entry
        self._is_new = True

    def write_if_due(self) -> None:
        """Write, unless that was just done."""
        if time.monotonic() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Replace the file at once, so that a reader never sees half of it."""
        if not self._is_new:
            return
        began = time.monotonic()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(self._path.name + ".tmp")
        unfinished.write_text(json.dumps(self._entries, indent=1), encoding="utf8")
        os.replace(unfinished, self._path)
        self._is_new = False
        # A file that takes long to write is written more rarely.
        self._next_write = time.monotonic() + max(DUMP_SECONDS, 20 * (time.monotonic() - began))


def read_anomalies(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of one `anomaly.json`; a damaged one is set aside with a warning."""
    try:
        content = json.loads(path.read_text(encoding="utf8"))
        if not isinstance(content, dict):
            raise ValueError(f"expected an object, found {type(content).__name__}")
    except ValueError as error:
        aside = path.with_name(path.name + ".damaged")
        log.warning("%s: not readable as JSON (%s); it is kept as %s", path, error, aside.name)
        os.replace(path, aside)
        return {}
    return content
