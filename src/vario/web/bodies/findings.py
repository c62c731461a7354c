"""What was found in a run: incidents, alerts, the first cause, and what changed lately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from vario.rules.api.alerts import Kind, Scope, Severity


class Incident(TypedDict):
    """What one cause did."""

    step: int
    """Where it began."""
    first_step: int
    last_step: int
    rule: str
    severity: Severity
    place: str | None
    """The module or parameter to look at; null where it is not one."""
    rank: int | None
    scope: Scope
    cause: str
    title: str
    text: str
    next: str
    """What to do next."""
    num_alerts: int
    targets: list[str]
    series: str | None
    """quantity|target|statistic, where one series shows it best."""


class Alert(TypedDict):
    """One finding of one rule."""

    step: int
    rule: str
    kind: Kind
    severity: Severity
    rank: int | None
    quantity: str
    target: str | None
    statistic: str
    value: float
    low: float | None
    """The low end of the usual range."""
    high: float | None
    """The high end of the usual range."""
    place: str | None
    text: str
    series: str | None
    """quantity|target|statistic, where one series shows it."""


class ChainLink(TypedDict):
    """One link of the chain from the first cause to what it led to."""

    step: int
    rank: int | None
    target: str | None
    quantity: str
    rule: str
    text: str
    series: str | None


class Cause(TypedDict):
    """The first cause, and what it led to."""

    paragraph: str
    chain: list[ChainLink]


class Alerts(TypedDict):
    """Alerts and incidents, and the first cause."""

    incidents: list[Incident]
    alerts: list[Alert]
    num_alerts: int
    """How many there are; of very many only the first are told."""
    diagnosis: Cause | None
    source: Literal["recorded", "replayed"]


class Change(TypedDict):
    """A series that changed lately."""

    quantity: str
    target: str
    statistic: str
    kind: str
    """non-finite, constant, level, trend, spike or spread."""
    before: float
    after: float
    step: int
    """Where it began."""
    score: float
    text: str
    spark: Sequence[float]
    num_alike: int
    """How many targets of this quantity changed like this, where most did."""
    num_targets: int
    same: Sequence[str]
    """Other series that are the same thing: `quantity of target`."""


class Changes(TypedDict):
    """What changed lately, most first."""

    changes: list[Change]
    num_series: int
    last_step: int | None
    window_steps: int | None
    """How many steps count as lately; null where it depends on how often a quantity is watched."""
