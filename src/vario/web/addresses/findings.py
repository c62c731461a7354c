"""Endpoints for findings: recent changes, alerts, incidents, and the root cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.reports.changes_text import how
from vario.rules.api.alerts import Alert
from vario.rules.api.rule import stage_of
from vario.runs.findings.changes import Change, rank_changes
from vario.runs.findings.check import Check, check, found_check
from vario.runs.findings.diagnosis import Diagnosis, diagnosis_of
from vario.runs.findings.diagnosis_text import diagnosis_text, source_text
from vario.runs.findings.onset import BadRow
from vario.runs.findings.replay import warn_of_failure
from vario.runs.run import Run
from vario.runs.views.status.quantity_size import check_size, rows_bytes
from vario.runs.views.status.vitals import spark_of
from vario.web import bodies
from vario.web.addresses.charts import QUANTITY
from vario.web.addresses.incidents import described, described_alert
from vario.web.addresses.overview import RUN
from vario.web.api.answers import Endpoint
from vario.web.api.parameters import Parameter
from vario.web.served import Served

CHAIN_LENGTH = 12
ALERTS_SHOWN = 2000
REPLAYED_BYTES = 64 << 20
"""Rules are replayed over runs up to this size, with all rows in memory."""


def changes(served: Served, values: Mapping[str, Any]) -> bodies.Changes:
    """Return the series that changed most recently."""
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
    """Return alerts and incidents, stored or from a replay, and the root cause."""
    run = served.open(values["run"])
    if values["replay"]:
        check_size("replay", rows_bytes(run), REPLAYED_BYTES, "Run `vario check --replay` instead.")
    found = check(run, failed=warn_of_failure, replay=True) if values["replay"] else found_check(run)
    return {
        "incidents": [described(incident) for incident in found.incidents],
        "alerts": [described_alert(alert) for alert in found.alerts[:ALERTS_SHOWN]],
        "num_alerts": len(found.alerts),
        "diagnosis": _diagnosis(run, found),
        "source": found.source,
        "remark": source_text(found),
    }


def _diagnosis(run: Run, found: Check) -> bodies.Cause | None:
    if not found.incidents:
        return None
    diagnosis = diagnosis_of(run, found)
    assert diagnosis.first is not None, "there are incidents"
    return {"paragraph": diagnosis_text(diagnosis), "chain": _chain(diagnosis, run)[:CHAIN_LENGTH]}


def _chain(found: Diagnosis, run: Run) -> list[bodies.ChainLink]:
    """The chain of consequences: the lead of the root cause, then all later alerts in order, each place once."""
    first = found.first
    assert first is not None
    after = [((one.step, one.stage, one.order), _link(one, run)) for one in first.alerts if one.step >= first.lead.step]
    for row in found.onset.chain if found.onset is not None else ():
        when = row.step, stage_of(row.quantity, row.target), float(row.order)
        after.append((when, _bad_link(row, run)))
    places: dict[tuple[str, str | None], bodies.ChainLink] = {}
    for link in (_link(first.lead, run), *(link for _, link in sorted(after, key=lambda entry: entry[0]))):
        places.setdefault((link["quantity"], link["target"]), link)
    return list(places.values())


def _link(alert: Alert, run: Run) -> bodies.ChainLink:
    return {
        "step": alert.step,
        "rank": alert.rank if run.world_size > 1 else None,
        "target": alert.target,
        "quantity": alert.quantity,
        "rule": alert.rule,
        "label": alert.label_or_rule,
        "text": alert.text,
        "series": alert.chart,
    }


def _bad_link(row: BadRow, run: Run) -> bodies.ChainLink:
    return {
        "step": row.step,
        "rank": row.rank if run.world_size > 1 else None,
        "target": row.target,
        "quantity": row.quantity,
        "rule": "non_finite",
        "label": "non_finite",
        "text": f"{row.quantity.replace('_', ' ')} of '{row.target}' contains {'NaN' if row.nans else 'Inf'}",
        "series": None if "|" in row.target else f"{row.quantity}|{row.target}|",
    }


ENDPOINTS = (
    Endpoint(
        "/api/changes",
        "Recent changes: the series that changed most, largest first.",
        changes,
        (
            RUN,
            Parameter(
                "last", "How many steps count as recent (default: a tenth of the run).", "whole", low=1, high=10**9
            ),
            QUANTITY,
            Parameter("top", "The most changes to return.", "whole", 10, 1, 1000),
        ),
        body=bodies.Changes,
    ),
    Endpoint(
        "/api/alerts",
        "Alerts, incidents and the root cause.",
        alerts,
        (RUN, Parameter("replay", "1: run the rules over the stored rows, which takes a while.", "switch", False)),
        body=bodies.Alerts,
    ),
)
