"""One incident per root cause: groups alerts that occur together, led by the alert closest to the cause."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vario.core.records import ROOT
from vario.rules.api.alerts import SEVERITIES, STAGES, Alert, Incident, Scope, Severity
from vario.rules.api.causes import explain
from vario.rules.api.detector import QUIET_STEPS
from vario.rules.api.findings import HUGE, common_name
from vario.rules.api.rule import Rule

COLLECTED_STEPS = 3
"""Steps to wait after the first alert before an incident is reported."""
HUGE_STRENGTH = math.log(HUGE)
FORETOLD = 2
"""The families of rules that must have raised alerts before a NaN for it to count as their consequence."""
AGREEING_STEPS = 5
"""Families of rules that raise alerts within this many steps agree."""


@dataclass(frozen=True)
class Grouped:
    """The outcome of grouping a step's alerts."""

    alerts: list[Alert]
    """The alerts, each with the incident it belongs to."""
    told: list[Incident] = field(default_factory=list)
    """Incidents to report now: new ones, and those that became more urgent since they were reported."""
    revised: list[Incident] = field(default_factory=list)
    """Incidents that were reported and have been revised: to be stored, not reported again."""


class Incidents:
    """Groups alerts into incidents as they arrive: in training, when following a run, or in a replay."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules
        self._alerts: list[Alert] = []
        self._told: Incident | None = None

    def add(self, step: int, alerts: Iterable[Alert]) -> Grouped:
        """Add a step's alerts."""
        found = list(alerts)
        told: list[Incident] = []
        if self._alerts and step - self._alerts[-1].step > QUIET_STEPS:
            told += self.flush()
        # Quiet rules never start an incident, but join one.
        begins = 0 if self._alerts else next((at for at, alert in enumerate(found) if not self._is_quiet(alert)), None)
        if begins is not None and found:
            first = self._alerts[0].step if self._alerts else step
            found[begins:] = [dataclasses.replace(alert, incident=incident_id(first)) for alert in found[begins:]]
            self._alerts += found[begins:]
        if not self._alerts or step - self._alerts[0].step < COLLECTED_STEPS:
            return Grouped(found, told)
        if self._told is None:
            return Grouped(found, told + self._tell(diagnose(self._alerts, self._rules)))
        now = diagnose(self._alerts, self._rules) if found and self._may_change(found) else self._told
        if SEVERITIES.index(now.severity) > SEVERITIES.index(self._told.severity) and now.severity == "page":
            return Grouped(found, told + self._tell(now))
        is_same = _head(now) == _head(self._told)
        return Grouped(found, told, [] if is_same else self._tell(now))

    @property
    def told(self) -> Incident | None:
        """The incident in progress, if it was reported."""
        return self._told

    def flush(self) -> list[Incident]:
        """Return what has not been reported yet; the next alert starts a new incident."""
        ready = [diagnose(self._alerts, self._rules)] if self._alerts and self._told is None else []
        self._alerts, self._told = [], None
        return ready

    def _is_quiet(self, alert: Alert) -> bool:
        known = self._rules.get(alert.rule)
        return known is not None and known.is_quiet

    def _tell(self, incident: Incident) -> list[Incident]:
        self._told = incident
        return [incident]

    def _may_change(self, latest: Sequence[Alert]) -> bool:
        """Whether these alerts can change the incident: late ones only by raising its severity."""
        is_early = latest[0].step - self._alerts[0].step <= QUIET_STEPS
        return is_early or any(alert.severity == "page" for alert in latest)


def incident_id(first_step: int) -> str:
    """Return the id of the incident that begins at a step: there is one at a time."""
    return f"step-{first_step}"


def collect(alerts: Iterable[Alert], rules: Mapping[str, Rule]) -> tuple[list[Alert], list[Incident]]:
    """Return all alerts, each with its incident, and all incidents, each with its alerts."""
    book = Incidents(rules)
    ordered = sorted(alerts, key=lambda found: found.step)
    grouped = [alert for step, found in itertools.groupby(ordered, _step) for alert in book.add(step, found).alerts]
    groups: dict[str, list[Alert]] = {}
    for alert in grouped:
        if alert.incident:
            groups.setdefault(alert.incident, []).append(alert)
    return grouped, [diagnose(group, rules) for group in groups.values()]


def _step(alert: Alert) -> int:
    return alert.step


def _head(incident: Incident) -> Incident:
    """The part of an incident that is reported, without the fields that only grow."""
    return dataclasses.replace(incident, alerts=(), last_step=incident.step)


def diagnose(alerts: Sequence[Alert], rules: Mapping[str, Rule]) -> Incident:
    """Build an incident from alerts: the lead, the place, the severity, the likely cause and the chart.

    This is the only place that fills in an incident, in the training process and for stored runs of older versions.
    """
    first = alerts[0].step
    # An alert that a rule raised late may have begun with the first ones.
    early = [
        alert
        for alert in alerts
        if alert.may_begin_with(first) <= first + COLLECTED_STEPS and alert.step <= first + QUIET_STEPS
    ]
    # The loss shows a fault last: it leads only if nothing exact began with it.
    is_certain = any(alert.kind == "exact" and not alert.target_is_loss for alert in early)
    told = [alert for alert in early if not (is_certain and alert.target_is_loss)]
    nearest = min(told, key=lambda alert: _nearness(alert, rules, early))
    lead = _common_place(nearest, early)
    rank = _rank(lead, early)
    scope: Scope = "rank" if lead.scope == "tensor" and rank is not None else lead.scope
    place = _place(lead)
    cause, advice = explain(lead, rules.get(lead.rule))
    severity = _severity(lead, early)
    # Late consequences of a fault still determine its severity.
    raised_by = None if severity == "page" else next((alert for alert in alerts if alert.severity == "page"), None)
    return Incident(
        step=first,
        last_step=max(alert.step for alert in alerts),
        lead=lead,
        severity=severity if raised_by is None else raised_by.severity,
        scope=scope,
        place=place,
        rank=rank,
        cause=cause,
        advice=advice,
        alerts=tuple(alerts),
        id=incident_id(first),
        stage=STAGES[lead.stage],
        chart=nearest.chart,
        raised_by=raised_by,
    )


def _place(lead: Alert) -> str | None:
    """The module or parameter to look at."""
    if lead.target is None or lead.quantity == "scalar":
        return None
    name, _, side = lead.target.partition(":")
    if lead.quantity == "activation" and side.startswith("input") and "." in name:
        # The input of this module came from the module that calls it.
        return name.rpartition(".")[0]
    return name


def _nearness(
    alert: Alert, rules: Mapping[str, Rule], early: Sequence[Alert]
) -> tuple[int, int, int, int, int, float, float]:
    """Sort key, lowest is closest to the cause: exact rules first, then the earliest, in the order of a step."""
    rule = rules.get(alert.rule)
    is_symptom = rule is not None and rule.is_symptom
    is_quiet = rule is not None and rule.is_quiet
    is_certain = alert.kind == "exact" and (not is_symptom or _is_unforetold(alert, early))
    # The outermost module contains all others: name it only if there is no other. A NaN that was there first came in
    # with the batch.
    is_whole = alert.target is not None and alert.target.partition(":")[0] == ROOT and alert.scope == "tensor"
    is_whole = is_whole and alert.kind != "exact"
    return (
        int(is_quiet),
        int(not is_certain),
        int(is_whole),
        # What was not watched when the first of them began may have begun with it, in its part of the step.
        alert.may_begin_with(min(other.began for other in early)),
        alert.stage,
        alert.order,
        -alert.strength,
    )


def _is_unforetold(alert: Alert, early: Sequence[Alert]) -> bool:
    """Whether a NaN or Inf appeared without warning; if values grew before it, it is their consequence."""
    before = {other.quantity for other in early if other.began < alert.began}
    place = (alert.began, alert.stage, alert.order)
    exploded = any(
        (other.began, other.stage, other.order) < place and HUGE_STRENGTH < other.strength < math.inf
        for other in early
        if other.kind == "relative"
    )
    return not math.isfinite(alert.value) and len(before) < FORETOLD and not exploded


def _common_place(lead: Alert, alerts: Sequence[Alert]) -> Alert:
    """If one rule names several parts of one block in the same step, the block is the place."""
    alike = [
        alert.target
        for alert in alerts
        if (alert.rule, alert.step, alert.quantity) == (lead.rule, lead.step, lead.quantity) and alert.target
    ]
    if lead.target is None or lead.quantity not in ("gradient", "update", "weight", "checksum") or len(alike) < 3:
        return lead
    shared = common_name(alike)
    # The list of all layers is not a place.
    is_list = any(name.removeprefix(f"{shared}.").split(".")[0].isdigit() for name in alike)
    return dataclasses.replace(lead, target=shared) if shared and not is_list else lead


def _rank(lead: Alert, alerts: Sequence[Alert]) -> int | None:
    """The rank to name, if only one is affected."""
    if lead.rank is None:
        return None
    others = {
        alert.rank
        for alert in alerts
        if alert.rule == lead.rule and alert.quantity == lead.quantity and alert.rank is not None
        if alert.step == lead.step
    }
    return lead.rank if len(others) == 1 else None


def _severity(lead: Alert, alerts: Sequence[Alert]) -> Severity:
    worst = max((alert.severity for alert in alerts), key=SEVERITIES.index)
    agreeing = [alert for alert in alerts if alert.step - lead.step <= AGREEING_STEPS]
    # What an exact rule only notes is something loops do on purpose: its consequences are no further evidence.
    is_meant = lead.kind == "exact" and lead.severity == "note"
    families = {alert.quantity for alert in agreeing if not alert.is_of_any_objective and not is_meant}
    return "warn" if worst == "note" and len(families) > 1 else worst
