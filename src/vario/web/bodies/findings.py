"""What was found in a run: incidents, alerts, the root cause, and recent changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from vario.rules.api.alerts import Kind, Scope, Severity
from vario.runs.findings.check import Source


class Incident(TypedDict):
    """All alerts of one root cause."""

    id: str
    """Its name within the run."""
    step: int
    """Where it began."""
    first_step: int
    last_step: int
    rule: str
    label: str
    """What to call it: the name of the rule, or what fits better, as `gradient drop`."""
    severity: Severity
    place: str | None
    """The module or parameter to look at; null if there is no single one."""
    rank: int | None
    scope: Scope
    stage: str
    """The part of a step in which it began: batch, forward, loss, backward, reduction, optimizer or weight."""
    cause: str
    title: str
    text: str
    next: str
    """What to do next."""
    num_alerts: int
    targets: list[str]
    series: str | None
    """quantity|target|statistic, if one series shows it best."""


class Alert(TypedDict):
    """One finding of one rule."""

    step: int
    rule: str
    label: str
    """What to call it: the name of the rule, or what fits better, as `gradient drop`."""
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
    """quantity|target|statistic, if one series shows it."""


class ChainLink(TypedDict):
    """One link of the chain from the root cause to its consequences."""

    step: int
    rank: int | None
    target: str | None
    quantity: str
    rule: str
    label: str
    """What to call it: the name of the rule, or what fits better, as `gradient drop`."""
    text: str
    series: str | None


class Cause(TypedDict):
    """The root cause and its consequences."""

    paragraph: str
    chain: list[ChainLink]


class Alerts(TypedDict):
    """Alerts, incidents and the root cause."""

    incidents: list[Incident]
    alerts: list[Alert]
    num_alerts: int
    """The total number; if there are very many, only the first are listed."""
    diagnosis: Cause | None
    source: Source
    """`stored`: found during training. `replay`: found by running the rules over the stored rows."""
    remark: str
    """The source in words, and what no rule has checked."""


class Change(TypedDict):
    """A series that changed recently."""

    quantity: str
    target: str
    statistic: str
    kind: str
    """non-finite, constant, level, trend, spike, drop or spread."""
    before: float
    after: float
    step: int
    """Where it began."""
    score: float
    text: str
    spark: Sequence[float]
    num_alike: int
    """How many targets of this quantity changed like this, if most did."""
    num_targets: int
    same: Sequence[str]
    """Other series with the same change: `quantity of target`."""


class Changes(TypedDict):
    """Recent changes, largest first."""

    changes: list[Change]
    num_series: int
    last_step: int | None
    window_steps: int | None
    """How many steps count as recent; null if that depends on how often a quantity is watched."""
