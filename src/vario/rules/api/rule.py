"""What a rule is: a function over a step that yields findings, with its kind, its options and its words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vario.core.errors import ConfigError
from vario.core.text import unknown
from vario.rules.api.alerts import Alert, Kind, Scope, Severity

STAGES = {
    "stray": 0,
    "activation": 1,
    "attention": 1,
    "unit": 1,
    "expert": 1,
    "activation_gradient": 3,
    "gradient_local": 3,
    "gradient_accumulated": 3,
    "gradient": 4,
    "communication": 4,
    "gradient_applied": 5,
    "update": 5,
    "moment": 5,
    "moment_before": 5,
    "weight_before": 0,
    "weight": 6,
    "checksum": 6,
}
"""Where in a step each quantity belongs: batch 0, forward 1, loss 2, backward 3, reduction 4, optimizer 5, weight 6."""
SCALAR_STAGES = {"batch": 0, "wait": 0, "loss": 2, "gradient": 3, "lr": 5}

SEVERITY: Mapping[Kind, Severity] = {"exact": "page", "limit": "warn", "relative": "note"}


@dataclass(frozen=True)
class Finding:
    """What a rule yields: the detector adds step, rank and rule."""

    text: str
    """What it saw, in a sentence that needs no other."""
    quantity: str
    target: str | None = None
    value: float = float("nan")
    statistic: str = ""
    low: float | None = None
    high: float | None = None
    scope: Scope = "tensor"
    rank: int | None = None
    """Only for rules over ranks: the one that is off."""
    micro_step: int = 0
    order: float = 0.0
    strength: float = 0.0
    others: tuple[str, ...] = ()
    since: int | None = None
    """The step at which it began, where the rule waited for more before it spoke."""
    severity: Severity | None = None
    """Where it differs from that of the rule's kind."""
    cause: str = ""
    """What is likely to have happened, where the rule can tell from what it saw in this step."""


Look = Callable[..., Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule. Made by the decorator `rule`."""

    name: str
    kind: Kind
    look: Look
    over: Literal["rank", "ranks"]
    """Whether it looks at one rank's step (`Step`) or at the same step of several (`RanksStep`)."""
    is_quiet: bool
    """For reports only: it never speaks while training runs."""
    is_symptom: bool
    """Whether it shows what a fault led to rather than the fault: an earlier alert is nearer to the cause."""
    needs: frozenset[str]
    """Quantities and plain numbers without all of which there is nothing to look at; empty: it looks at every step."""
    options: Mapping[str, Any]
    """Names and defaults."""
    summary: str
    why: str
    """Why it matters."""
    next: str
    """What to do then, in one or two sentences that begin with a verb."""
    module: str = field(default="")

    def looks_at(self, names: Collection[str]) -> bool:
        """Whether there is something to look at in a step of these quantities and plain numbers."""
        groups = tuple(need for need in self.needs if need.endswith("/"))
        return not self.needs or any(name in self.needs or name.startswith(groups) for name in names)

    def alert(self, finding: Finding, step: int, rank: int | None) -> Alert:
        """A finding as an alert."""
        return Alert(
            rule=self.name,
            kind=self.kind,
            severity=finding.severity or SEVERITY[self.kind],
            step=step,
            rank=finding.rank if self.over == "ranks" else rank,
            quantity=finding.quantity,
            target=finding.target,
            value=float(finding.value),
            text=finding.text,
            statistic=finding.statistic,
            low=None if finding.low is None else float(finding.low),
            high=None if finding.high is None else float(finding.high),
            scope=finding.scope,
            micro_step=finding.micro_step,
            stage=stage_of(finding.quantity, finding.target),
            order=float(finding.order),
            strength=float(finding.strength),
            others=finding.others,
            since=finding.since,
            cause=finding.cause,
        )

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options that the rule does not have, or of another type."""
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
) -> Callable[[Look], Rule]:
    """Turn a function over a step into a rule of the function's name.

    `needs`: the quantities and plain numbers it looks at, with spaces between; `setting/` stands for all numbers whose
    names begin so. It is not asked about steps that have none of them.

    Its keyword arguments are the rule's options. The first line of its docstring says what it finds; paragraphs that
    begin with `Why:` and `Next:` say why that matters and what to do then.
    """

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
            module=look.__module__,
        )

    return wrap


def stage_of(quantity: str, target: str | None) -> int:
    """Where in a step something belongs."""
    if quantity == "scalar":
        found = [stage for word, stage in SCALAR_STAGES.items() if (target or "").startswith(word)]
        return found[0] if found else 5
    return STAGES.get(quantity, 5)


def _paragraph(paragraphs: list[str], opening: str) -> str:
    found = [" ".join(text.removeprefix(opening).split()) for text in paragraphs if text.startswith(opening)]
    return found[0] if found else ""


def _words(default: Any) -> str:
    return "true or false" if isinstance(default, bool) else "a number"
