"""Incidents and alerts for the dashboard."""

from __future__ import annotations

from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.wording import in_a_paragraph, place_of
from vario.web import bodies

TARGETS_SHOWN = 20


def described(incident: Incident) -> bodies.Incident:
    """Return an incident with its text and the series to look at."""
    lead = incident.lead
    targets = dict.fromkeys(
        name
        for alert in incident.alerts or (lead,)
        for name in ([alert.target] if alert.target is not None else alert.others)
    )
    return {
        "id": incident.id,
        "step": lead.began,
        "first_step": incident.step,
        "last_step": incident.last_step,
        "rule": lead.rule,
        "label": lead.label_or_rule,
        "severity": incident.severity,
        "place": incident.place,
        "rank": incident.rank,
        "scope": incident.scope,
        "stage": incident.stage,
        "cause": incident.cause,
        "title": lead.text,
        "text": in_a_paragraph(incident),
        "next": incident.advice,
        "num_alerts": max(1, len(incident.alerts)),
        "targets": list(targets)[:TARGETS_SHOWN],
        "series": incident.chart,
    }


def described_alert(alert: Alert) -> bodies.Alert:
    """Return one alert with the series it is about."""
    return {
        "step": alert.step,
        "rule": alert.rule,
        "label": alert.label_or_rule,
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
        "series": alert.chart,
    }
