"""What a rule is: a function over a step that yields findings, with its kind, options and text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vario.core.errors import ConfigError
from vario.core.text import unknown
from vario.rules.api.alerts import STAGES, Alert, Kind, Scope, Severity

QUANTITY_STAGES = {
    "unexpected_change": "batch",
    "weight_before": "batch",
    "activation": "forward",
    "attention": "forward",
    "unit": "forward",
    "channel": "forward",
    "expert": "forward",
    "router": "forward",
    "activation_gradient": "backward",
    "gradient_local": "backward",
    "gradient_accumulated": "backward",
    "gradient": "reduction",
    "communication": "reduction",
    "weight": "weight",
    "checksum": "weight",
}
"""The part of a step each quantity belongs to; all others belong to the optimizer."""
NUMBER_STAGES = {"batch": "batch", "wait": "batch", "loss": "loss", "gradient": "backward"}
"""The same for plain numbers, by the prefix of their names."""

HYPOTHESES = ("data", "labels", "optimizer", "schedule", "precision", "module", "loop", "hardware", "ranks", "resume")
"""What a diagnosis weighs as the reason of an incident."""

SEVERITY: Mapping[Kind, Severity] = {"exact": "page", "limit": "warn", "relative": "note"}


@dataclass(frozen=True)
class Finding:
    """What a rule yields: the detector adds step, rank and rule."""

    text: str
    """What the rule saw, in one self-contained sentence."""
    quantity: str
    target: str | None = None
    value: float = float("nan")
    statistic: str = ""
    low: float | None = None
    high: float | None = None
    scope: Scope = "tensor"
    rank: int | None = None
    """Only for rules over ranks: the rank that differs."""
    micro_step: int = 0
    order: float = 0.0
    strength: float = 0.0
    others: tuple[str, ...] = ()
    since: int | None = None
    """The step at which it began, if the rule waited for more evidence."""
    unseen_from: int | None = None
    """The first of the steps right before it in which nobody looked, if that is not its quantity's interval."""
    severity: Severity | None = None
    """Set if it differs from the default of the rule's kind."""
    cause: str = ""
    """The likely cause, if the rule can infer it from this step."""
    label: str = ""
    """What to call it, if the rule's name does not say it: `gradient drop`."""


Look = Callable[..., Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule. Made by the decorator `rule`."""

    name: str
    kind: Kind
    look: Look
    over: Literal["rank", "ranks"]
    """Whether it checks one rank's step (`Step`) or the same step on several ranks (`RanksStep`)."""
    is_quiet: bool
    """For reports only: it raises no alert during training."""
    is_symptom: bool
    """Whether it detects a consequence rather than the fault: an earlier alert is closer to the cause."""
    needs: frozenset[str]
    """Quantities and plain numbers, at least one of which a step must have; empty: every step is checked."""
    options: Mapping[str, Any]
    """Names and defaults."""
    summary: str
    why: str
    """Why it matters."""
    next: str
    """What to do about it, in one or two sentences that begin with a verb."""
    causes: Mapping[str, str] = field(default_factory=dict)
    """The likely cause by the scope of a finding; the one under "" is the default."""
    points_to: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """How strongly a finding speaks for each hypothesis, by its scope; the ones under "" are the default."""
    stage: str = ""
    """The part of a step its findings belong to; empty: the one of their quantity."""
    chart: tuple[str, ...] = ()
    """Which of a target's numbers to chart, best first; empty: the first one recorded."""
    module: str = field(default="")

    def looks_at(self, names: Collection[str]) -> bool:
        """Whether the rule applies to a step with these quantities and plain numbers."""
        groups = tuple(need for need in self.needs if need.endswith("/"))
        return not self.needs or any(name in self.needs or name.startswith(groups) for name in names)

    def points(self, scope: str) -> Mapping[str, float]:
        """Return how strongly a finding of this scope speaks for each hypothesis."""
        return self.points_to.get(scope) or self.points_to.get("", {})

    def severity_of(self, finding: Finding) -> Severity:
        """Return a finding's own severity, or the one that findings of this kind of rule have."""
        return finding.severity or SEVERITY[self.kind]

    def alert(self, finding: Finding, step: int, rank: int | None) -> Alert:
        """Turn a finding into an alert."""
        return Alert(
            rule=self.name,
            kind=self.kind,
            severity=self.severity_of(finding),
            step=step,
            rank=rank,
            quantity=finding.quantity,
            target=finding.target,
            value=float(finding.value),
            text=finding.text,
            statistic=finding.statistic,
            low=None if finding.low is None else float(finding.low),
            high=None if finding.high is None else float(finding.high),
            scope=finding.scope,
            micro_step=finding.micro_step,
            stage=STAGES.index(self.stage) if self.stage else stage_of(finding.quantity, finding.target),
            order=float(finding.order),
            strength=float(finding.strength),
            others=finding.others,
            since=finding.since,
            unseen_from=finding.unseen_from,
            cause=finding.cause,
            label=finding.label,
        )

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise ConfigError for an option the rule does not have, or a value of the wrong type."""
        where = f"rules.{self.name}"
        for key, value in options.items():
            if key not in self.options:
                raise ConfigError(unknown(where, key, self.options) if self.options else f"{where}: has no options")
            default = self.options[key]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if isinstance(default, bool) is not isinstance(value, bool) or not (is_number or isinstance(value, bool)):
                raise ConfigError(f"{where}.{key}: expected {_words(default)}, got {value!r}")
            if isinstance(default, int) and not isinstance(default, bool) and value != int(value):
                raise ConfigError(f"{where}.{key}: expected a whole number, got {value!r}")


def rule(
    kind: Kind,
    *,
    name: str = "",
    over: Literal["rank", "ranks"] = "rank",
    is_quiet: bool = False,
    is_symptom: bool = False,
    needs: str = "",
    stage: str = "",
    chart: str = "",
) -> Callable[[Look], Rule]:
    """Turn a function over a step into a rule named after it.

    `needs`: the quantities and plain numbers it reads, separated by spaces; `setting/` matches all numbers with that
    prefix. Steps with none of them are skipped. Rules over ranks see every step; of an ended run only what they need is
    read. `stage`: the part of a step it is about, if not the one of the quantity it names. `chart`: which number of a
    target to chart, if a target has several, best first.

    The function's keyword arguments are the rule's options. The first line of its docstring says what it finds. The
    paragraphs `Why:` and `Next:` say why that matters and what to do, and `Cause:` gives the likely cause. `Points to:
    data 2, labels 1` says which hypotheses of a diagnosis a finding supports: 1 is a hint, 5 all but proves it. `Cause
    (SCOPE):` and `Points to (SCOPE):`, as in `Cause (global):`, are those of findings with that scope.
    """
    if stage and stage not in STAGES:
        raise ConfigError(unknown("stage", stage, STAGES))

    def wrap(look: Look) -> Rule:
        arguments = list(inspect.signature(look).parameters.values())[1:]
        for argument in arguments:
            if argument.default is argument.empty:
                raise ConfigError(f"rule {look.__name__}: its option '{argument.name}' needs a default")
        paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(look.__doc__ or look.__name__))
        return Rule(
            name=name or look.__name__,
            kind=kind,
            look=look,
            over=over,
            is_quiet=is_quiet,
            is_symptom=is_symptom,
            needs=frozenset(needs.split()),
            options={argument.name: argument.default for argument in arguments},
            summary=" ".join(paragraphs[0].split()),
            why=_paragraph(paragraphs, "Why:"),
            next=_paragraph(paragraphs, "Next:"),
            causes={scope: words for paragraph in paragraphs for scope, words in _by_scope(paragraph, "Cause")},
            points_to={
                scope: _weights(look.__name__, words)
                for paragraph in paragraphs
                for scope, words in _by_scope(paragraph, "Points to")
            },
            stage=stage,
            chart=tuple(chart.split()),
            module=look.__module__,
        )

    return wrap


def stage_of(quantity: str, target: str | None) -> int:
    """Return the part of a step something belongs to, as an index into `STAGES`."""
    known = NUMBER_STAGES.items() if quantity == "scalar" else ()
    of_number = next((stage for word, stage in known if (target or "").startswith(word)), "optimizer")
    return STAGES.index(QUANTITY_STAGES.get(quantity, of_number))


def _by_scope(paragraph: str, opening: str) -> Iterator[tuple[str, str]]:
    if found := re.match(rf"{opening}(?: \((\w+)\))?:\s+", paragraph):
        yield found[1] or "", " ".join(paragraph[found.end() :].split())


def _weights(rule_name: str, words: str) -> dict[str, float]:
    """Read `data 2, labels 1`."""
    weights: dict[str, float] = {}
    for part in words.rstrip(".").split(","):
        name, _, weight = part.strip().partition(" ")
        if name not in HYPOTHESES:
            raise ConfigError(unknown(f"rule {rule_name}: Points to", name, HYPOTHESES))
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ConfigError(
                f"rule {rule_name}: Points to: expected a number after '{name}', got {weight!r}"
            ) from None
    return weights


def _paragraph(paragraphs: list[str], opening: str) -> str:
    found = [" ".join(text.removeprefix(opening).split()) for text in paragraphs if text.startswith(opening)]
    return found[0] if found else ""


def _words(default: Any) -> str:
    return "true or false" if isinstance(default, bool) else "a number"
