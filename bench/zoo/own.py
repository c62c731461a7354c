"""vario's own rules as a detector: `vario check` over a recorded run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import vario
from vario.core.quantities import PROBES, default_every, first_steps
from vario.runs.findings.check import check
from zoo.score import Incident, Line

SCOPES = {"batch": "data"}


def rules(path: Path, keep: Callable[[str, int], bool] | None = None) -> list[Incident]:
    """The incidents that vario's rules find in a run, as `vario check` tells them."""
    found = check(vario.open_run(path), rules=True, keep=keep)
    return [
        Incident(
            step=incident.step,
            rule=incident.lead.rule,
            target=incident.place,
            rank=incident.rank,
            scope=SCOPES.get(incident.scope, incident.scope),
            cause=(incident.cause,),
            lines=tuple(Line(alert.step, alert.rule, alert.target, alert.rank) for alert in incident.alerts),
        )
        for incident in found.incidents
    ]


def rules_as_watched_by_default(path: Path) -> list[Incident]:
    """The same at the intervals at which quantities are watched unless asked for more."""
    return rules(path, kept_by_default)


def kept_by_default(quantity: str, step: int) -> bool:
    """Whether a step of a quantity is watched by default, without a budget."""
    return quantity not in PROBES or step % default_every(quantity) == 0 or step < first_steps(quantity)
