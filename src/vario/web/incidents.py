"""Incidents and alerts as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence

from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.paragraph import in_a_paragraph, place_of
from vario.runs.findings.stored_alerts import has_alerts
from vario.runs.run import Run
from vario.statistics import STATISTICS
from vario.web import bodies

TARGETS_SHOWN = 20
SEVERAL = ("attention", "unit", "expert", "update")
"""Quantities with several numbers of each target, `TARGET:NUMBER`."""
SHOWN = {
    "attn_logit": ("max_logit",),
    "attn_entropy": ("head_entropy", "entropy"),
    "dead_units": ("dead",),
    "expert_imbalance": ("load",),
    "state_lost": ("surprise",),
    "stale_second_moment": ("surprise",),
    "lr_change": ("ratio",),
}
"""Which of them a rule looks at; of others the first that was recorded."""


class Curves:
    """The curves of a run, to find the one that shows an alert."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kinds: dict[str, dict[str, list[str]]] = {}

    def of(self, alert: Alert) -> str | None:
        """`quantity|target|statistic` of the curve that shows it; None where it is about no single one."""
        target, statistic = alert.target, "value" if alert.quantity == "scalar" else alert.statistic
        if target is None or "|" in target:
            return None
        if alert.quantity in SEVERAL:
            kinds = self._several(alert.quantity).get(target)
            if kinds is None:
                return None
            target += f":{next((kind for kind in SHOWN.get(alert.rule, ()) if kind in kinds), kinds[0])}"
        return f"{alert.quantity}|{target}|{statistic if statistic in STATISTICS or statistic == 'value' else ''}"

    def _several(self, quantity: str) -> dict[str, list[str]]:
        """The numbers of each target; names are listed once, for however many alerts."""
        if quantity not in self._kinds:
            found = self._kinds[quantity] = {}
            for name in self._run.targets(quantity):
                target, _, kind = name.rpartition(":")
                found.setdefault(target, []).append(kind)
        return self._kinds[quantity]


def recorded(run: Run) -> Sequence[Incident]:
    """The incidents that were stored while the run was watched; most runs have none, which is seen at once."""
    return run.incidents if has_alerts(run) else ()


def described(incident: Incident, curves: Curves) -> bodies.Incident:
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
        "series": curves.of(lead),
    }


def described_alert(alert: Alert, curves: Curves) -> bodies.Alert:
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
        "series": curves.of(alert),
    }
