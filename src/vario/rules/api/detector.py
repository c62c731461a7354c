"""Runs rules over steps: an alert when something begins, silence while it lasts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from vario.core.records import HELD
from vario.rules.api.alerts import Alert
from vario.rules.api.rule import Finding, Rule
from vario.rules.api.series_state import Last
from vario.rules.api.step_view import RanksStep, Step

QUIET_STEPS = 10
"""Steps without a finding after which the same finding is news again."""

MOST_KINDS_OF_STEPS = 64
"""How many different sets of quantities and numbers the choice of rules is cached for."""


class ChosenRule(Protocol):
    """A rule and its options."""

    @property
    def rule(self) -> Rule:
        """The rule."""

    @property
    def options(self) -> Mapping[str, Any]:
        """What was set."""


class Detector:
    """The rules of one rank, or of all ranks together."""

    def __init__(
        self, chosen: Iterable[ChosenRule], over: str = "rank", failed: Callable[[str, Exception], None] | None = None
    ) -> None:
        """`failed` is told when a rule raises, which ends it; without it the error is raised."""
        self._chosen = [found for found in chosen if found.rule.over == over]
        self._failed = failed
        self._asked: dict[frozenset[str], list[tuple[Rule, Mapping[str, Any]]]] = {}
        """The rules that have something to look at in a step of these quantities and plain numbers."""

    def see(self, step: Step | RanksStep, rank: int | None) -> list[Alert]:
        """What begins in this step."""
        alerts: list[Alert] = []
        _note_intervals(step)
        for rule, options in self._rules_for(step):
            try:
                for finding in rule.look(step, **options):
                    finding = _from_batch(finding, step)
                    alert = rule.alert(finding, step.number, _rank(finding, step, rank))
                    if _is_news(alert, step):
                        alerts.append(alert)
            except Exception as error:
                if self._failed is None:
                    raise
                self._chosen = [found for found in self._chosen if found.rule is not rule]
                self._asked.clear()
                self._failed(f"rule {rule.name}", error)
        return alerts

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


def _from_batch(finding: Finding, step: Step | RanksStep) -> Finding:
    """What an embedding alone shows comes with the rows it was asked for: the batch is what to look at."""
    is_relative = finding.quantity in ("gradient", "update") and finding.scope == "tensor"
    name = (finding.target or "").partition(":")[0]
    if isinstance(step, Step) and is_relative and finding.value > 0 and name in step.facts.embeddings:
        return dataclasses.replace(finding, scope="batch")
    return finding


def _rank(finding: Finding, step: Step | RanksStep, rank: int | None) -> int | None:
    """The rank to name: none for what all of them hold alike and one of them records."""
    if not isinstance(step, Step) or finding.quantity not in HELD_ALIKE:
        return rank
    if finding.target is None:
        return None if step.facts.replicated else rank
    return None if finding.target.partition(":")[0] in step.facts.replicated else rank


HELD_ALIKE = HELD | {"update"}


def _note_intervals(step: Step | RanksStep) -> None:
    """A quantity watched one step in fifty is silent in between without being well again."""
    shown = [step] if isinstance(step, Step) else list(step.steps.values())[:1]
    quantities = tuple(dict.fromkeys(frame.quantity for one in shown for frame in one.frames))
    if quantities:
        seen = step.memory.get("detector intervals", Last())
        rows = seen.at(quantities)
        seen["value"][rows] = step.number - seen["step"][rows]
        seen["step"][rows] = step.number


def _is_news(alert: Alert, step: Step | RanksStep) -> bool:
    firing = step.memory.get("detector firing", Last())
    name = f"{alert.rule} {alert.quantity} {alert.target} {alert.rank}"
    _, last = firing.swap((name,), np.array([alert.value]), alert.step)
    intervals = step.memory.get("detector intervals", Last())
    interval = intervals.read("value", (alert.quantity,))[0]
    # A NaN stands for "never before", of both.
    return not alert.step - last[0] <= max(QUIET_STEPS, 0 if np.isnan(interval) else 2 * interval)
