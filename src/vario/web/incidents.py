"""Incidents and alerts as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vario.detection.alerts import Alert, Incident
from vario.detection.paragraph import in_a_paragraph, place_of
from vario.runs.alerts import has_alerts
from vario.runs.run import Run

TARGETS_SHOWN = 20


def recorded(run: Run) -> Sequence[Incident]:
    """The incidents that were stored while the run was watched; most runs have none, which is seen at once."""
    return run.incidents if has_alerts(run) else ()


def described(incident: Incident) -> dict[str, Any]:
    """An incident with its words and the series to look at."""
    lead = incident.lead
    targets = dict.fromkeys(
        name
        for alert in incident.alerts or (lead,)
        for name in ([alert.target] if alert.target is not None else alert.others)
    )
    return {
        "step": lead.began,
        "first_step": incident.step,
        "last_step": incident.last_step,
        "rule": lead.rule,
        "severity": incident.severity,
        "place": incident.place,
        "rank": incident.rank,
        "scope": incident.scope,
        "cause": incident.cause,
        "title": lead.text,
        "text": in_a_paragraph(incident),
        "next": incident.advice,
        "num_alerts": max(1, len(incident.alerts)),
        "targets": list(targets)[:TARGETS_SHOWN],
        "series": series_of(lead),
    }


def described_alert(alert: Alert) -> dict[str, Any]:
    """One alert and the series it is about."""
    return {
        "step": alert.step,
        "rule": alert.rule,
        "kind": alert.kind,
        "severity": alert.severity,
        "rank": alert.rank,
        "quantity": alert.quantity,
        "target": alert.target,
        "statistic": alert.statistic,
        "value": alert.value,
        "low": alert.low,
        "high": alert.high,
        "place": place_of(alert),
        "text": alert.text,
        "series": series_of(alert),
    }


def series_of(alert: Alert) -> str | None:
    """`quantity|target|statistic` of the curve that shows an alert; None where it is about no single one."""
    if alert.target is None or "|" in alert.target:
        return None
    statistic = "value" if alert.quantity == "scalar" else alert.statistic
    return f"{alert.quantity}|{alert.target}|{statistic}"
