"""Runs rules over steps: raises an alert when something begins, and none while it lasts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any, Protocol

from vario.core.quantities import LOSSES, SCALAR
from vario.core.records import HELD
from vario.rules.api.alerts import Alert
from vario.rules.api.charts import with_part
from vario.rules.api.rule import Finding, Rule
from vario.rules.api.series_state import Last
from vario.rules.api.step_view import INTERVALS, RanksStep, Step

RATE = "lr"
USUAL = 4
"""Steps in a row with the same plain numbers after which these are the usual ones."""
QUIET_STEPS = 10
"""Steps without a finding after which the same finding raises an alert again."""

MOST_QUIET_STEPS = 64
"""The same for findings that recur at regular distances."""

MOST_KINDS_OF_STEPS = 64
"""The number of sets of quantities for which the matching rules are cached."""


class ChosenRule(Protocol):
    """A rule and its options."""

    @property
    def rule(self) -> Rule:
        """The rule."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that were set."""


class Detector:
    """The rules of one rank, or of all ranks together."""

    def __init__(
        self, chosen: Iterable[ChosenRule], over: str = "rank", failed: Callable[[str, Exception], None] | None = None
    ) -> None:
        """`failed` is called when a rule raises, and the rule is dropped; without it the error propagates."""
        self._chosen = [found for found in chosen if found.rule.over == over]
        self._failed = failed
        self._asked: dict[frozenset[str], list[tuple[Rule, Mapping[str, Any]]]] = {}
        """The rules that apply to a step with these quantities and plain numbers."""
        self._last_there: dict[str, int] = {}
        """The last step that had each plain number with a finding: some are not in every step."""
        self._usual_names: Set[str] = frozenset()
        """The plain numbers that most steps have."""
        self._other_names: Set[str] = frozenset()
        self._num_others = 0
        self._last_rate: float | None = None
        """The learning rate of the last step that rules looked at."""

    def see(self, step: Step | RanksStep, rank: int | None) -> list[Alert]:
        """Return the alerts that begin in this step."""
        alerts: list[Alert] = []
        if isinstance(step, Step):
            if self._passes_over(step):
                return alerts
            self._last_rate = step.scalars.get(RATE)
        step.memory.first_step(step.number)
        _note_intervals(step)
        for rule, options in self._rules_for(step):
            try:
                for finding in rule.look(step, **options):
                    finding = _from_batch(finding, step)
                    named = finding.rank if rule.over == "ranks" else _rank(finding, step, rank)
                    if _is_news(rule, finding, named, step, self._last_there.get(finding.target or "")):
                        alert = _unseen(rule.alert(finding, step.number, named), step)
                        alerts.append(with_part(alert, rule, partial(_names, step, alert.quantity)))
                    if finding.quantity == SCALAR and finding.target is not None:
                        self._last_there.setdefault(finding.target, step.number)
            except Exception as error:
                if self._failed is None:
                    raise
                self._chosen = [found for found in self._chosen if found.rule is not rule]
                self._asked.clear()
                self._failed(f"rule {rule.name}", error)
        if isinstance(step, Step):
            self._last_there.update(dict.fromkeys(self._last_there.keys() & step.scalars.keys(), step.number))
        return alerts

    def _passes_over(self, step: Step) -> bool:
        """Whether rules need not look at a step: it is brief, like those before, and one of the next three will do."""
        return step.is_one_of_many and step.is_brief and not self._is_notable(step)

    def _is_notable(self, step: Step) -> bool:
        """Whether a brief step of plain numbers has other ones than usual, or an unusual one."""
        names = step.scalars.keys()
        if names != self._usual_names:
            self._num_others = self._num_others + 1 if names == self._other_names else 1
            self._other_names = names
            if self._num_others >= USUAL:
                self._usual_names = names
            return True
        if step.scalars.get(RATE) != self._last_rate:
            return True
        return any(step.is_unusual(name) for name in LOSSES if name in step.scalars)

    def _rules_for(self, step: Step | RanksStep) -> list[tuple[Rule, Mapping[str, Any]]]:
        names = frozenset(step.quantities.union(step.scalars)) if isinstance(step, Step) else frozenset()
        asked = self._asked.get(names)
        if asked is None:
            if len(self._asked) >= MOST_KINDS_OF_STEPS:
                self._asked.clear()
            asked = self._asked[names] = [
                (found.rule, {**found.rule.options, **found.options})
                for found in self._chosen
                if isinstance(step, RanksStep) or found.rule.looks_at(names)
            ]
        return asked


def _names(step: Step | RanksStep, quantity: str) -> tuple[str, ...]:
    return step.rows(quantity).targets if isinstance(step, Step) else ()


def _from_batch(finding: Finding, step: Step | RanksStep) -> Finding:
    """If only an embedding is affected, the rows it looked up are the reason: attribute the alert to the batch."""
    is_relative = finding.quantity in ("gradient", "update") and finding.scope == "tensor"
    name = (finding.target or "").partition(":")[0]
    if isinstance(step, Step) and is_relative and finding.value > 0 and name in step.facts.embeddings:
        return dataclasses.replace(finding, scope="batch")
    return finding


def _rank(finding: Finding, step: Step | RanksStep, rank: int | None) -> int | None:
    """The rank to name: None for a tensor that is replicated on all ranks and recorded by one."""
    if not isinstance(step, Step) or finding.quantity not in HELD_ALIKE:
        return rank
    if finding.target is None:
        return None if step.facts.replicated else rank
    return None if finding.target.partition(":")[0] in step.facts.replicated else rank


HELD_ALIKE = HELD | {"update"}


def _note_intervals(step: Step | RanksStep) -> None:
    """Remember how often each quantity is watched: no finding between two watched steps does not mean it recovered."""
    shown = [step] if isinstance(step, Step) else list(step.steps.values())[:1]
    if not any(one.frames for one in shown):
        return
    quantities = tuple(dict.fromkeys(frame.quantity for one in shown for frame in one.frames))
    if quantities:
        seen = step.memory.get(INTERVALS, Last)
        rows = seen.at(quantities)
        seen["value"][rows] = step.number - seen["step"][rows]
        seen["step"][rows] = step.number


def _unseen(alert: Alert, step: Step | RanksStep) -> Alert:
    """Note since when nobody had looked at this quantity, if it is not watched in every step."""
    if (
        alert.unseen_from is not None
        or alert.quantity == SCALAR
        or not isinstance(step, Step)
        or (every := step.interval(alert.quantity)) == 1
    ):
        return alert
    return dataclasses.replace(alert, unseen_from=max(0, alert.began - every + 1))


def _is_news(rule: Rule, finding: Finding, rank: int | None, step: Step | RanksStep, last_there: int | None) -> bool:
    """Whether this finding is new: not raised recently, nor in the last step that had this plain number."""
    firing, intervals = step.memory.get("detector firing", Last), step.memory.get(INTERVALS, Last)
    name = f"{rule.name} {finding.quantity} {finding.target} {rank}"
    # NaN means "never before" for all of them.
    last = firing.one("step", name)
    firing.swap_one(name, float(finding.value), step.number)
    interval = intervals.one("value", finding.quantity)
    if finding.quantity == SCALAR and last_there is not None and last >= last_there:
        return False
    quiet = max(QUIET_STEPS, 0 if math.isnan(interval) else 2 * interval)
    gaps = step.memory.get("detector gaps", Last)
    gap = gaps.swap_one(name, min(step.number - last, MOST_QUIET_STEPS / 2), step.number)
    # A tensor that only some steps have, as a generator's gradient, shows the same at regular distances.
    recurs = 0 if math.isnan(gap) or rule.severity_of(finding) == "page" else 2 * gap
    return not step.number - last <= max(quiet, recurs)
