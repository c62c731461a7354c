"""Alerts and incidents: what a rule found, and all alerts that share a root cause."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vario.core.old_names import QUANTITIES, new_target
from vario.core.quantities import LOSS_BACKWARD
from vario.statistics import STATISTICS

Kind = Literal["exact", "limit", "relative"]
"""Exact rules check what is true of every correct run, limits are physical, relative rules compare with the past."""
Severity = Literal["page", "warn", "note"]
Scope = Literal["tensor", "rank", "global", "batch"]
"""What is affected: one tensor or module, one rank, all tensors, or the model's input."""

SEVERITIES: tuple[Severity, ...] = ("note", "warn", "page")
"""Least urgent first."""
STAGES = ("batch", "forward", "loss", "backward", "reduction", "optimizer", "weight")
"""The parts of a step, in order."""
SEVERAL = ("attention", "unit", "expert", "router", "update")
"""Quantities that record several numbers per target, as `TARGET:PART`."""
GRADIENT_DROP = "gradient drop"
"""The label of gradients that fell, which the rule `grad_spike` finds too."""


@dataclass(frozen=True)
class Alert:
    """One finding of one rule."""

    rule: str
    kind: Kind
    severity: Severity
    step: int
    rank: int | None
    """None if it concerns all ranks, or no rank in particular."""
    quantity: str
    target: str | None
    """None if it concerns all targets."""
    value: float
    text: str
    """What the rule saw, in one sentence."""
    statistic: str = ""
    low: float | None = None
    high: float | None = None
    """The usual range."""
    scope: Scope = "tensor"
    micro_step: int = 0
    stage: int = 0
    """The part of a step it belongs to: an index into `STAGES`."""
    order: float = 0.0
    """Its position within the stage."""
    strength: float = 0.0
    """How far off the value is, used to rank alerts."""
    others: tuple[str, ...] = ()
    """Other targets with the same finding."""
    since: int | None = None
    """The step at which it began, if the rule waited before it raised the alert."""
    unseen_from: int | None = None
    """The first of the steps right before it in which its quantity was not watched: it may have begun there."""
    cause: str = ""
    """The likely cause, if the rule could infer it from this step."""
    part: str = ""
    """Which of the target's numbers shows it, if the quantity records several: `max_logit` of attention."""
    label: str = ""
    """What to call it, if the rule's name does not say it: `gradient drop`."""
    incident: str = ""
    """The `id` of the incident it belongs to; empty if only reports show it."""

    @property
    def chart(self) -> str | None:
        """`quantity|target|statistic` of the curve that shows it; None if no single curve does."""
        if self.target is None or "|" in self.target:
            return None
        target = f"{self.target}:{self.part}" if self.part else self.target
        if self.quantity in SEVERAL and ":" not in target:
            return None
        if self.quantity == "scalar":
            return f"scalar|{target}|value"
        return f"{self.quantity}|{target}|{self.statistic if self.statistic in STATISTICS else ''}"

    @property
    def label_or_rule(self) -> str:
        """What to call it where people read it: its label, else the name of its rule."""
        return self.label or self.rule

    @property
    def target_is_loss(self) -> bool:
        """Whether the alert is about a loss."""
        return self.quantity == "scalar" and (self.target or "").startswith("loss")

    @property
    def is_of_any_objective(self) -> bool:
        """Whether it is about the tensor backward() was called on, which need not be a loss comparable across steps."""
        return self.quantity == "scalar" and (self.target or "").startswith(LOSS_BACKWARD)

    @property
    def began(self) -> int:
        """The first step that shows it."""
        return self.step if self.since is None else self.since

    def may_begin_with(self, step: int) -> int:
        """The first step that shows it, or this one if it may have begun then without anybody looking."""
        if self.unseen_from is None or not self.unseen_from <= step < self.began:
            return self.began
        return step

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: defaults are omitted, NaN and Inf become strings."""
        plain = dataclasses.asdict(self)
        defaults = {item.name: item.default for item in dataclasses.fields(self)}
        return {key: _plain(value) for key, value in plain.items() if value != defaults[key] or key == "rank"}

    def to_stored(self) -> dict[str, Any]:
        """Return a line of `alerts.jsonl`. `incident` is null, not missing, if there is none: older lines omit the
        key."""
        return {"incident": None, **self.to_json()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Alert:
        """Rebuild an alert from the values of `to_json`."""
        known = {item.name for item in dataclasses.fields(cls)}
        found = {key: _number(value) if key in _NUMBERS else value for key, value in plain.items() if key in known}
        found["quantity"] = quantity = QUANTITIES.get(found["quantity"], found["quantity"])
        if isinstance(target := found.get("target"), str):
            found["target"] = new_target(quantity, target)
        if isinstance(part := found.get("part"), str):
            found["part"] = new_target(quantity, f":{part}")[1:]
        found["others"] = tuple(found.get("others", ()))
        found.setdefault("label", _old_label(found))
        found["incident"] = "" if found.get("incident") is None else found["incident"]
        return cls(**found)


@dataclass(frozen=True)
class Incident:
    """All alerts of one root cause."""

    step: int
    last_step: int
    lead: Alert
    """The alert closest to the cause."""
    severity: Severity
    scope: Scope
    place: str | None
    """The module or parameter to look at; None if there is no single one."""
    rank: int | None
    cause: str
    """The likely cause."""
    advice: str
    """What to do next."""
    alerts: tuple[Alert, ...] = field(default=())
    id: str = ""
    """Its name within the run. It stays the same when the incident is revised."""
    stage: str = ""
    """The part of the step in which it began, one of `STAGES`."""
    chart: str | None = None
    """`quantity|target|statistic` of the curve that shows it best; None if no single curve does."""
    raised_by: Alert | None = None
    """A later alert that raised its severity."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, alerts included."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        plain["raised_by"] = None if self.raised_by is None else self.raised_by.to_json()
        return plain | {"lead": self.lead.to_json(), "alerts": [alert.to_json() for alert in self.alerts]}

    def to_stored(self) -> dict[str, Any]:
        """Return a line of `incidents.jsonl` with the first alerts only; `alerts.jsonl` has all of them."""
        return dataclasses.replace(self, alerts=self.alerts[:MOST_STORED]).to_json()

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Incident:
        """Rebuild an incident from the values of `to_json`."""
        known = {item.name for item in dataclasses.fields(cls)}
        found = {key: value for key, value in plain.items() if key in known}
        found["lead"] = Alert.from_json(found["lead"])
        if isinstance(chart := found.get("chart"), str) and chart.count("|") > 1:
            quantity, target, statistic = chart.split("|", 2)
            quantity = QUANTITIES.get(quantity, quantity)
            found["chart"] = f"{quantity}|{new_target(quantity, target)}|{statistic}"
        found["alerts"] = tuple(Alert.from_json(alert) for alert in found.get("alerts", ()))
        if found.get("raised_by") is not None:
            found["raised_by"] = Alert.from_json(found["raised_by"])
        return cls(**found)


MOST_STORED = 64
"""The most alerts stored in one incident's line."""
_NUMBERS = frozenset({"value", "low", "high", "order", "strength"})


def _old_label(alert: Mapping[str, Any]) -> str:
    """Return the label of an alert from before alerts had one."""
    # The value of all tensors together is the logarithm of how far they moved.
    value, low = alert.get("value"), 0.0 if alert.get("target") is None else alert.get("low")
    has_fallen = isinstance(value, (int, float)) and isinstance(low, (int, float)) and value < low
    return GRADIENT_DROP if has_fallen and alert.get("rule") == "grad_spike" else ""


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
