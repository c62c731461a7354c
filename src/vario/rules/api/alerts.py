"""Alerts and incidents: what a rule found, and what several findings of one cause come to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vario.core.quantities import LOSS_BACKWARD

Kind = Literal["exact", "limit", "relative"]
"""Exact rules check what holds in every correct training, limits are physical, relative ones know a series' past."""
Severity = Literal["page", "warn", "note"]
Scope = Literal["tensor", "rank", "global", "batch"]
"""What is concerned: one tensor or module, one rank, all tensors together, or what came in."""

SEVERITIES: tuple[Severity, ...] = ("note", "warn", "page")
"""From the least to the most urgent."""


@dataclass(frozen=True)
class Alert:
    """One finding of one rule."""

    rule: str
    kind: Kind
    severity: Severity
    step: int
    rank: int | None
    """None where all ranks, or no rank in particular, are concerned."""
    quantity: str
    target: str | None
    """None where all targets are concerned."""
    value: float
    text: str
    """What it saw, in a sentence."""
    statistic: str = ""
    low: float | None = None
    high: float | None = None
    """The range that is usual."""
    scope: Scope = "tensor"
    micro_step: int = 0
    stage: int = 0
    """Where in a step it belongs: batch, forward, loss, backward, reduction, optimizer, weight."""
    order: float = 0.0
    """When within its stage."""
    strength: float = 0.0
    """How far off, for telling the worst of several."""
    others: tuple[str, ...] = ()
    """Further targets that show the same."""
    since: int | None = None
    """The step at which it began, where the rule waited before it spoke."""
    cause: str = ""
    """What is likely to have happened, where the rule could tell from what it saw in this step."""

    @property
    def target_is_loss(self) -> bool:
        """Whether it is about a loss and nothing else."""
        return self.quantity == "scalar" and (self.target or "").startswith("loss")

    @property
    def is_of_any_objective(self) -> bool:
        """Whether it is about what backward was called on, which need not be a loss that is comparable over steps."""
        return self.quantity == "scalar" and (self.target or "").startswith(LOSS_BACKWARD)

    @property
    def began(self) -> int:
        """The first step that shows it."""
        return self.step if self.since is None else self.since

    def to_json(self) -> dict[str, Any]:
        """As a line of `alerts.jsonl`: what says nothing is left out, and a NaN or Inf is a word."""
        plain = dataclasses.asdict(self)
        defaults = {item.name: item.default for item in dataclasses.fields(self)}
        return {key: _plain(value) for key, value in plain.items() if value != defaults[key] or key == "rank"}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Alert:
        """The alert of such a line."""
        known = {item.name for item in dataclasses.fields(cls)}
        found = {key: _number(value) if key in _NUMBERS else value for key, value in plain.items() if key in known}
        found["others"] = tuple(found.get("others", ()))
        return cls(**found)


@dataclass(frozen=True)
class Incident:
    """What one cause did, told once."""

    step: int
    last_step: int
    lead: Alert
    """The alert that is nearest to the cause."""
    severity: Severity
    scope: Scope
    place: str | None
    """The module or parameter to look at; None where it is not one."""
    rank: int | None
    cause: str
    """What is likely to have happened."""
    advice: str
    """What to do next."""
    alerts: tuple[Alert, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain values; alerts included."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return plain | {"lead": self.lead.to_json(), "alerts": [alert.to_json() for alert in self.alerts]}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Incident:
        """The incident of such values."""
        known = {item.name for item in dataclasses.fields(cls)}
        found = {key: value for key, value in plain.items() if key in known}
        found["lead"] = Alert.from_json(found["lead"])
        found["alerts"] = tuple(Alert.from_json(alert) for alert in found.get("alerts", ()))
        return cls(**found)


_NUMBERS = frozenset({"value", "low", "high", "order", "strength"})


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
