"""vario's own rules as a detector: `vario check` over a recorded run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import vario
from vario.runs.findings.replay import check
from zoo.score import Incident, Line

SCOPES = {"batch": "data"}
DEFAULT_EVERY = 10
EACH_STEP = ("gradient", "gradient_local", "stray", "checksum", "expert")
"""What is watched at each step by default; the rest one step in ten."""


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
    """The same where dear quantities are watched one step in ten, as they are unless asked for more."""
    return rules(path, lambda quantity, step: quantity in EACH_STEP or step % DEFAULT_EVERY == 0)
