"""What was found in a run: what changed lately, alerts, incidents, and the first cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vario.reports.ranking_text import how
from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.rule import stage_of
from vario.runs.findings.changes import Change, rank_changes
from vario.runs.findings.diagnosis import Diagnosis, Source, diagnosis_of
from vario.runs.findings.diagnosis_text import diagnosis_text
from vario.runs.findings.onset import BadRow
from vario.runs.findings.replay import check, warn_of_failure
from vario.runs.findings.stored_alerts import has_alerts
from vario.runs.run import Run
from vario.runs.views.quantity_extent import check_size, rows_bytes
from vario.runs.views.vitals import spark_of
from vario.web import bodies
from vario.web.answers import Endpoint
from vario.web.charts import QUANTITY
from vario.web.incidents import Curves, described, described_alert
from vario.web.overview import RUN
from vario.web.parameters import Parameter
from vario.web.served import Served

CHAIN_LENGTH = 12
ALERTS_SHOWN = 2000
REPLAYED_BYTES = 64 << 20
"""Rules are replayed over runs up to this size; they hold all rows at once."""


def changes(served: Served, values: Mapping[str, Any]) -> bodies.Changes:
    """The series that changed most lately."""
    found = rank_changes(served.open(values["run"]), values["last"], values["quantity"], values["top"])
    return {
        "changes": [_described_change(change) for change in found.changes],
        "num_series": found.num_series,
        "last_step": found.last_step,
        "window_steps": found.window_steps,
    }


def _described_change(change: Change) -> bodies.Change:
    return {
        "quantity": change.quantity,
        "target": change.target,
        "statistic": change.statistic,
        "kind": change.kind,
        "before": change.before,
        "after": change.after,
        "step": change.step,
        "score": change.score,
        "text": how(change),
        "spark": spark_of(change.values),
        "num_alike": change.num_alike,
        "num_targets": change.num_targets,
        "same": change.same,
    }


def alerts(served: Served, values: Mapping[str, Any]) -> bodies.Alerts:
    """Alerts and incidents as they were stored, or from a replay, and the first cause."""
    run = served.open(values["run"])
    if values["replay"]:
        check_size("replay", rows_bytes(run), REPLAYED_BYTES, "Run `vario check` on it instead.")
        checked = check(run, failed=warn_of_failure)
        found, incidents = checked.alerts, checked.incidents
    else:
        has_any = has_alerts(run)
        found, incidents = run.alerts if has_any else [], run.incidents if has_any else []
    curves = Curves(run)
    return {
        "incidents": [described(incident, curves) for incident in sorted(incidents, key=lambda one: one.step)],
        "alerts": [described_alert(alert, curves) for alert in found[:ALERTS_SHOWN]],
        "num_alerts": len(found),
        "diagnosis": _diagnosis(run, incidents, "replay" if values["replay"] else "stored"),
        "source": "replayed" if values["replay"] else "recorded",
    }


def _diagnosis(run: Run, incidents: Sequence[Incident], source: Source) -> bodies.Cause | None:
    if not incidents:
        return None
    found = diagnosis_of(run, incidents, source)
    assert found.first is not None, "there are incidents"
    return {"paragraph": diagnosis_text(found), "chain": _chain(found, run)[:CHAIN_LENGTH]}


def _chain(found: Diagnosis, run: Run) -> list[bodies.ChainLink]:
    """What followed what: the lead of the first cause, then all that spoke after it in order, each place once."""
    first, curves = found.first, Curves(run)
    assert first is not None
    after = [
        ((one.step, one.stage, one.order), _link(one, run, curves))
        for one in first.alerts
        if one.step >= first.lead.step
    ]
    for row in found.onset.chain if found.onset is not None else ():
        when = row.step, stage_of(row.quantity, row.target), float(row.order)
        after.append((when, _bad_link(row, run)))
    places: dict[tuple[str, str | None], bodies.ChainLink] = {}
    for link in (_link(first.lead, run, curves), *(link for _, link in sorted(after, key=lambda entry: entry[0]))):
        places.setdefault((link["quantity"], link["target"]), link)
    return list(places.values())


def _link(alert: Alert, run: Run, curves: Curves) -> bodies.ChainLink:
    return {
        "step": alert.step,
        "rank": alert.rank if run.world_size > 1 else None,
        "target": alert.target,
        "quantity": alert.quantity,
        "rule": alert.rule,
        "text": alert.text,
        "series": curves.of(alert),
    }


def _bad_link(row: BadRow, run: Run) -> bodies.ChainLink:
    return {
        "step": row.step,
        "rank": row.rank if run.world_size > 1 else None,
        "target": row.target,
        "quantity": row.quantity,
        "rule": "non_finite",
        "text": f"{row.quantity.replace('_', ' ')} of '{row.target}' holds {'NaN' if row.nans else 'Inf'}",
        "series": None if "|" in row.target else f"{row.quantity}|{row.target}|",
    }


ENDPOINTS = (
    Endpoint(
        "/api/changes",
        "What changed lately: the series that left their past furthest, most first.",
        changes,
        (
            RUN,
            Parameter(
                "last", "How many steps count as lately; left out: a tenth of the run.", "whole", low=1, high=10**9
            ),
            QUANTITY,
            Parameter("top", "At most so many.", "whole", 10, 1, 1000),
        ),
        body=bodies.Changes,
    ),
    Endpoint(
        "/api/alerts",
        "Alerts, incidents and the first cause.",
        alerts,
        (RUN, Parameter("replay", "1 runs the rules over the stored rows, which takes a while.", "switch", False)),
        body=bodies.Alerts,
    ),
)
