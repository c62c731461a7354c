"""One cause speaks once: alerts that come together are one incident, led by the alert nearest to the cause."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from vario.core.records import ROOT
from vario.rules.api.alerts import SEVERITIES, Alert, Incident, Scope, Severity
from vario.rules.api.causes import explain
from vario.rules.api.detector import QUIET_STEPS
from vario.rules.api.findings import HUGE, common_name
from vario.rules.api.rule import Rule

COLLECTED_STEPS = 3
"""Steps that are waited for after the first alert, before anything is said."""
HUGE_STRENGTH = math.log(HUGE)
FORETOLD = 2
"""Families of rules that must have spoken before a NaN for it to be their consequence."""
AGREEING_STEPS = 5
"""Families of rules that speak within so many steps agree."""


class Incidents:
    """Puts alerts together as they come."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules
        self._alerts: list[Alert] = []
        self._told: Severity | None = None

    def add(self, step: int, alerts: Iterable[Alert]) -> list[Incident]:
        """Take a step's alerts; the incidents that are ready to be told now."""
        found = list(alerts)
        ready: list[Incident] = []
        if self._alerts and step - self._alerts[-1].step > QUIET_STEPS:
            ready += self.flush()
        loud = [alert for alert in found if not self._is_quiet(alert)]
        if loud or self._alerts:
            self._alerts += found
        if self._alerts and step - self._alerts[0].step >= COLLECTED_STEPS:
            ready += self._tell(loud)
        return ready

    def flush(self) -> list[Incident]:
        """What has not been told yet; the next alert begins a new incident."""
        ready = self._tell([])
        self._alerts, self._told = [], None
        return ready

    @property
    def open(self) -> Incident | None:
        """The incident that is going on, as it stands."""
        return diagnose(self._alerts, self._rules) if self._alerts else None

    def _is_quiet(self, alert: Alert) -> bool:
        known = self._rules.get(alert.rule)
        return known is not None and known.is_quiet

    def _tell(self, latest: Sequence[Alert]) -> list[Incident]:
        if not self._alerts:
            return []
        if self._told is None:
            incident = diagnose(self._alerts, self._rules)
        else:
            # Told once; again only when something more urgent comes on top.
            urgent = [alert for alert in latest if alert.severity == "page" and self._told != "page"]
            if not urgent:
                return []
            incident = diagnose(urgent, self._rules)
        self._told = incident.severity
        return [incident]


def collect(alerts: Iterable[Alert], rules: Mapping[str, Rule]) -> list[Incident]:
    """The incidents of a whole run, each with all its alerts."""
    incidents: list[Incident] = []
    current: list[Alert] = []
    for alert in sorted(alerts, key=lambda found: found.step):
        if current and alert.step - current[-1].step > QUIET_STEPS:
            incidents += _unless_quiet(current, rules)
            current = []
        current.append(alert)
    return incidents + _unless_quiet(current, rules)


def _unless_quiet(alerts: list[Alert], rules: Mapping[str, Rule]) -> list[Incident]:
    loud = [at for at, alert in enumerate(alerts) if not (alert.rule in rules and rules[alert.rule].is_quiet)]
    return [diagnose(alerts[loud[0] :], rules)] if loud else []


def diagnose(alerts: Sequence[Alert], rules: Mapping[str, Rule]) -> Incident:
    """What a number of alerts come to: who leads, where, how urgent, why."""
    first = alerts[0].step
    # What a rule that waits tells later may have begun with the first of them.
    early = [alert for alert in alerts if alert.began <= first + COLLECTED_STEPS and alert.step <= first + QUIET_STEPS]
    # The loss is the last to know: it leads where nothing certain began with it.
    is_certain = any(alert.kind == "exact" and not alert.target_is_loss for alert in early)
    told = [alert for alert in early if not (is_certain and alert.target_is_loss)]
    lead = min(told, key=lambda alert: _nearness(alert, rules, early))
    lead = _common_place(lead, early)
    rank = _rank(lead, early)
    scope: Scope = "rank" if lead.scope == "tensor" and rank is not None else lead.scope
    place = _place(lead)
    rule = rules.get(lead.rule)
    cause, advice = explain(lead, early, rule)
    return Incident(
        step=first,
        last_step=max(alert.step for alert in alerts),
        lead=lead,
        severity=_severity(lead, early),
        scope=scope,
        place=place,
        rank=rank,
        cause=cause,
        advice=advice,
        alerts=tuple(alerts),
    )


def _place(lead: Alert) -> str | None:
    """The module or parameter to look at."""
    if lead.target is None or lead.quantity == "scalar":
        return None
    name, _, side = lead.target.partition(":")
    if lead.quantity == "activation" and side.startswith("input") and "." in name:
        # Its own outputs are not to blame: what made it is in the module that calls this one.
        return name.rpartition(".")[0]
    return name


def _nearness(
    alert: Alert, rules: Mapping[str, Rule], early: Sequence[Alert]
) -> tuple[int, int, int, int, int, float, float]:
    """The least of these is nearest to the cause: what is certain, then what is early, in the order of a step."""
    rule = rules.get(alert.rule)
    is_symptom = rule is not None and rule.is_symptom
    is_quiet = rule is not None and rule.is_quiet
    is_certain = alert.kind == "exact" and (not is_symptom or _is_unforetold(alert, early))
    # The outermost module contains all others: it is a place only where no other is named. A NaN that was there before
    # any other came in with the batch.
    is_whole = alert.target is not None and alert.target.partition(":")[0] == ROOT and alert.scope == "tensor"
    is_whole = is_whole and alert.kind != "exact"
    return (
        int(is_quiet),
        int(not is_certain),
        int(is_whole),
        alert.began,
        alert.stage,
        alert.order,
        -alert.strength,
    )


def _is_unforetold(alert: Alert, early: Sequence[Alert]) -> bool:
    """Whether a NaN or Inf came out of the blue: where things grew before it, it is what they led to."""
    before = {other.quantity for other in early if other.began < alert.began}
    place = (alert.began, alert.stage, alert.order)
    exploded = any(
        (other.began, other.stage, other.order) < place and HUGE_STRENGTH < other.strength < math.inf
        for other in early
        if other.kind == "relative"
    )
    return not math.isfinite(alert.value) and len(before) < FORETOLD and not exploded


def _common_place(lead: Alert, alerts: Sequence[Alert]) -> Alert:
    """Where one rule names several parts of one block in the same step, the block is the place."""
    alike = [
        alert.target
        for alert in alerts
        if (alert.rule, alert.step, alert.quantity) == (lead.rule, lead.step, lead.quantity) and alert.target
    ]
    if lead.target is None or lead.quantity not in ("gradient", "update", "weight", "checksum") or len(alike) < 3:
        return lead
    shared = common_name(alike)
    # The list that holds all layers is no place.
    is_list = any(name.removeprefix(f"{shared}.").split(".")[0].isdigit() for name in alike)
    return dataclasses.replace(lead, target=shared) if shared and not is_list else lead


def _rank(lead: Alert, alerts: Sequence[Alert]) -> int | None:
    """The rank to name: where only one is off."""
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
    families = {alert.quantity for alert in agreeing if not alert.is_of_any_objective}
    return "warn" if worst == "note" and len(families) > 1 else worst
