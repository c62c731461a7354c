"""Which number of a target to chart, if its quantity records several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from vario.rules.api.alerts import SEVERAL, Alert
from vario.rules.api.rule import Rule


def with_part(alert: Alert, rule: Rule | None, names: Callable[[], Iterable[str]]) -> Alert:
    """Return the alert with the recorded number to chart; calls `names` only if it has to look it up."""
    if alert.part or alert.quantity not in SEVERAL or alert.target is None or ":" in alert.target:
        return alert
    parts = [name.rpartition(":")[2] for name in names() if name.rpartition(":")[0] == alert.target]
    wanted = [part for part in (() if rule is None else rule.chart) if part in parts]
    found = next(iter([*wanted, *parts]), None)
    return alert if found is None else dataclasses.replace(alert, part=found)
