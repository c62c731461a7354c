"""msprobe's alarms: AnomalyTurbulence and AnomalyNan over every written statistic, with msprobe's wording."""

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
    """The position of this process in the job."""

    rank: int = 0
    pp_stage: int = 0
    group_mates: Sequence[int] = (0,)


class _History:
    """Running means of the magnitudes of all series with one tag ending."""

    def __init__(self, num_columns: int) -> None:
        self._rows: dict[tuple[str, int], int] = {}
        self._means = np.full((0, num_columns), np.nan)

    def before(self, block: Block) -> Values:
        """Return each series' mean before this step (at first the value itself), then update it."""
        rows = block.rows
        keys = zip(rows.names, rows.micro_steps or [0] * len(rows.names), strict=True)
        at = np.array([self._rows.setdefault(key, len(self._rows)) for key in keys])
        if len(self._rows) > len(self._means):
            more = np.full((len(self._rows) - len(self._means), self._means.shape[1]), np.nan)
            self._means = np.concatenate([self._means, more])
        size = np.abs(block.values)
        means = np.where(np.isnan(self._means[at]), size, self._means[at])
        # A NaN or Inf in the mean would disable the series forever.
        self._means[at] = np.where(np.isfinite(size), DECAY * means + (1 - DECAY) * size, self._means[at])
        return means


class Alarms:
    """Checks each block as it is written; prints anomalies and stores them for `anomaly_detected/`."""

    def __init__(self, rules: Sequence[AlertRule], place: Place, dump_folder: Path | None) -> None:
        self.rules = rules
        self._place = place
        self._dump = None if dump_folder is None else AnomalyFile(dump_folder / f"rank{place.rank}" / "anomaly.json")
        self._histories: dict[tuple[str, tuple[str, ...]], _History] = {}
        self._found: list[tuple[int, str]] = []
        """This step's anomalies: the rule's number and its message."""

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
            self._found.append((int(found[row, column]), message))
            if self._dump is not None:
                self._dump.add(self._entry(block, int(row), step, tag, message))

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

    def step_ended(self, step: int) -> None:
        """Print what was found in this step, by rule, and update the file if it is due."""
        found = [message for _, message in sorted(self._found, key=lambda item: item[0])]
        self._found = []
        for message in found[:MAX_LINES]:
            log.warning("> %s", message)
        if len(found) > MAX_LINES:
            where = "" if self._dump is None else f"; all are in {self._dump.path}"
            log.warning("> %d more anomalies at step %d are not printed%s", len(found) - MAX_LINES, step, where)
        if self._dump is not None:
            self._dump.write_if_due()

    def close(self) -> None:
        """Write what is not in the file yet."""
        if self._dump is not None:
            self._dump.write()


def _hits(rule: AlertRule, statistics: list[str], values: Values, means: Values) -> npt.NDArray[np.bool_]:
    size = np.abs(values)
    is_id = np.array([name == "id" for name in statistics])
    counts_nans = np.array([name == "nans" for name in statistics])
    if rule.name == "AnomalyTurbulence":
        assert rule.threshold is not None
        applies = np.array([name in ("norm", "mean") for name in statistics])
        hits: npt.NDArray[np.bool_] = (size > (1 + rule.threshold) * means) & applies
    else:
        hits = np.isnan(values) | ((values > 0) & counts_nans)
        if rule.threshold is not None:
            hits |= (size > rule.threshold) & ~counts_nans
    return hits & ~(is_id & np.isnan(values))


class AnomalyFile:
    """`anomaly.json`: one object, a key per tag and step; an earlier run's entries stay."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, dict[str, Any]] = {}
        self._is_new = True
        self._next_write = 0.0
        self._has_warned = False
        try:
            if path.exists():
                self._entries = read_anomalies(path)
            self._is_new = not path.exists()
        except OSError as error:
            log.warning("%s: cannot be read: %s. Its content is lost.", path, error)
        self.write()

    def add(self, entry: dict[str, Any]) -> None:
        """Store one anomaly; for several statistics of one tag the last in the order of `ops` is kept."""
        key = f"{entry['tag_name']}_step_{entry['step']}_call_{entry['call_id']}"
        self._entries[key] = entry
        self._is_new = True

    def write_if_due(self) -> None:
        """Write, unless that was just done."""
        if time.monotonic() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Replace the file atomically, so that a reader never sees a partial file."""
        if not self._is_new:
            return
        began = time.monotonic()
        unfinished = self.path.with_name(self.path.name + ".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(self._entries, indent=1), encoding="utf8")
            os.replace(unfinished, self.path)
            self._is_new = False
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s: cannot be written: %s. Alarms are still printed; writing is retried.", self.path, error
                )
        # A file that takes long to write is written less often.
        self._next_write = time.monotonic() + max(DUMP_SECONDS, 20 * (time.monotonic() - began))


def read_anomalies(path: Path) -> dict[str, dict[str, Any]]:
    """Read the entries of one `anomaly.json`; a damaged one is renamed, with a warning."""
    try:
        content = json.loads(path.read_text(encoding="utf8"))
        if not isinstance(content, dict):
            raise ValueError(f"expected an object, found {type(content).__name__}")
    except ValueError as error:
        aside = path.with_name(path.name + ".damaged")
        log.warning("%s: not valid JSON (%s); renamed to %s", path, error, aside.name)
        os.replace(path, aside)
        return {}
    return content
