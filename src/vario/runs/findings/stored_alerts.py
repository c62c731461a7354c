"""Reads what rules found during training: the incidents that ranks and `vario follow` stored.

Every reader of incidents uses this module. Within one folder incidents are used as stored. Ranks do not communicate, so
incidents of several ranks with one cause are merged here, by the function that built each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vario.rules import RULES, Rule
from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.causes import with_names
from vario.rules.api.charts import with_part
from vario.rules.api.detector import QUIET_STEPS
from vario.rules.api.incidents import collect, diagnose, incident_id
from vario.runs.findings.alert_lines import alert_lines, has_alerts, incident_lines
from vario.runs.reader import RunReader

Lead = tuple[str, int, str | None]


@dataclass(frozen=True)
class Stored:
    """What was found while the run was watched."""

    alerts: list[Alert]
    """By step; each once, without steps that a resume discarded."""
    incidents: list[Incident]
    """By step; one incident per root cause, however many ranks reported it."""


@dataclass
class _Group:
    """Alerts of one cause."""

    alerts: list[Alert]
    stored: Incident | None
    """The incident as stored; None if it was not stored, or if the alerts are from several folders."""

    @property
    def last_step(self) -> int:
        return max(alert.step for alert in self.alerts)


@dataclass
class _Told:
    """The incidents as they were reported at the time."""

    by_id: dict[tuple[str, str], Incident] = field(default_factory=dict)
    by_lead: dict[Lead, Incident] = field(default_factory=dict)

    def add(self, folder: str, incident: Incident) -> None:
        """Add a line; a later line with the same id revises the incident."""
        if incident.id:
            self.by_id[folder, incident.id] = incident
        self.by_lead[_lead(incident)] = incident


def read_stored(run: RunReader, also: Iterable[Alert] = ()) -> Stored:
    """Return everything that was stored, plus alerts found since."""
    found: dict[tuple[Any, ...], Alert] = {}
    groups: dict[tuple[str, str], list[Alert]] = {}
    loose: list[Alert] = []
    quiet: list[Alert] = []
    for folder, alert, is_grouped in alert_lines(run) if has_alerts(run) else ():
        if found.setdefault(_key(alert), alert) is alert:
            if is_grouped and alert.incident:
                groups.setdefault((folder, alert.incident), []).append(alert)
            else:
                (quiet if is_grouped else loose).append(alert)
    told = _Told()
    for folder, incident in incident_lines(run) if found else ():
        told.add(folder, incident)
    known = {registered.name: registered.part for registered in RULES}
    loose += [alert for alert in also if found.setdefault(_key(alert), alert) is alert]
    regrouped, incidents = collect(_completed(run, loose, known), known)
    quiet += [alert for alert in regrouped if not alert.incident]
    together = _merged(
        [
            *(_Group(alerts, told.by_id.get(place)) for place, alerts in groups.items()),
            *(_Group(list(incident.alerts), None) for incident in incidents),
        ]
    )
    causes = [_incident(group, told, known) for group in together]
    grouped = [alert for incident in causes for alert in incident.alerts]
    return Stored(sorted([*quiet, *grouped], key=lambda alert: alert.step), causes)


def _key(alert: Alert) -> tuple[Any, ...]:
    return alert.step, alert.rank, alert.rule, alert.quantity, alert.target, alert.micro_step


def _lead(incident: Incident) -> Lead:
    return incident.lead.rule, incident.lead.step, incident.lead.target


def _completed(run: RunReader, alerts: Sequence[Alert], rules: Mapping[str, Rule]) -> list[Alert]:
    """Add the number to chart to alerts of older runs."""
    names: dict[str, list[str]] = {}

    def names_of(quantity: str) -> list[str]:
        if quantity not in names:
            names[quantity] = run.targets(quantity) if quantity in run.quantities("all") else []
        return names[quantity]

    return [with_part(alert, rules.get(alert.rule), partial(names_of, alert.quantity)) for alert in alerts]


def _merged(groups: list[_Group]) -> list[_Group]:
    """Merge groups of several folders whose steps follow each other without a pause."""
    merged: list[_Group] = []
    for group in sorted(groups, key=lambda one: one.alerts[0].step):
        if merged and group.alerts[0].step - merged[-1].last_step <= QUIET_STEPS:
            both = [*merged[-1].alerts, *group.alerts]
            merged[-1] = _Group(sorted(both, key=lambda alert: alert.step), None)
        else:
            merged.append(group)
    return merged


def _incident(group: _Group, told: _Told, rules: Mapping[str, Rule]) -> Incident:
    """The incident as stored; if it was not stored, or was partly discarded, it is rebuilt from its alerts."""
    stored = group.stored
    if stored is not None and stored.stage and stored.last_step <= group.last_step:
        # Runs of earlier versions say MODULE instead of the name.
        advice = with_names(stored.advice, stored.lead)
        return dataclasses.replace(stored, alerts=tuple(group.alerts), last_step=group.last_step, advice=advice)
    name = incident_id(group.alerts[0].step)
    made = diagnose([dataclasses.replace(alert, incident=name) for alert in group.alerts], rules)
    earlier = told.by_lead.get(_lead(made))
    if earlier is None or made.lead.rule in rules:
        return made
    # Only the process that ran an unknown rule can say what it means.
    return dataclasses.replace(made, cause=earlier.cause, advice=earlier.advice)
