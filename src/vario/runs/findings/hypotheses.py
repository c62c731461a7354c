"""Named hypotheses about an incident, weighed by what was seen, and by what was looked at and not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vario.rules import RULES
from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.rule import HYPOTHESES, Rule
from vario.runs.findings.clues import Clue, clues_of_run
from vario.runs.reader import RunReader

MOST = 3
LEAST_SHARES = (0.0, 0.01, 0.08)
"""How likely the second and the third must be to be listed."""
FOLLOWING = 0.35
"""How much an alert counts that is not the lead: it may be a consequence."""
PRIOR = {"labels": -0.5, "precision": -0.5, "loop": -0.5, "ranks": -1.0, "resume": -1.0, "hardware": -1.5}
"""How much rarer than the others each one is, as a logarithm of odds."""

TITLES: Mapping[str, str] = {
    "data": "the data: what goes into the model",
    "labels": "the labels, or what the loss compares with",
    "optimizer": "the optimizer: its options, its groups or its state",
    "schedule": "the learning rate and its schedule",
    "precision": "the precision: a dtype's range or rounding, the loss scale",
    "module": "a module's code or weights",
    "loop": "the training loop: accumulation, averaging, zero_grad, who writes weights",
    "hardware": "the hardware of one device",
    "ranks": "what ranks exchange",
    "resume": "what was restored at a resume",
}


@dataclass(frozen=True)
class Hypothesis:
    """One possible reason of an incident."""

    name: str
    """One of data, labels, optimizer, schedule, precision, module, loop, hardware, ranks, resume."""
    title: str
    share: float
    """How likely it is, relative to the others: all hypotheses together have 1. A ranking, not a measured frequency."""
    evidence: tuple[str, ...]
    """What was seen that speaks for it."""
    against: tuple[str, ...]
    """What was looked at and speaks against it."""
    look: str
    """The command or look that confirms it or rules it out."""


def hypotheses(run: RunReader, incident: Incident) -> tuple[Hypothesis, ...]:
    """Return the two or three likeliest reasons of an incident, likeliest first."""
    found = [*_of_alerts(incident), *clues_of_run(run, incident)]
    supported = [name for name in HYPOTHESES if any(clue.name == name and clue.weight > 0 for clue in found)]
    weights = {
        name: PRIOR.get(name, 0.0) + math.fsum(clue.weight for clue in found if clue.name == name) for name in supported
    }
    whole = math.fsum(math.exp(weight) for weight in weights.values())
    ordered = sorted(weights, key=lambda name: -weights[name])
    shares = {name: math.exp(weights[name]) / whole for name in ordered}
    return tuple(
        Hypothesis(
            name=name,
            title=TITLES[name],
            share=shares[name],
            evidence=tuple(_texts(found, name, 1)),
            against=tuple(_texts(found, name, -1)),
            look=_look(name, run, incident),
        )
        for number, name in enumerate(ordered[:MOST])
        if shares[name] >= LEAST_SHARES[number]
    )


def telling_apart(found: Sequence[Hypothesis]) -> str:
    """Return the one look that tells the two likeliest hypotheses apart; empty if there is only one."""
    if len(found) < 2:
        return ""
    return f"To tell {found[0].name} from {found[1].name}: {found[0].look}"


def _texts(found: Sequence[Clue], name: str, sign: int) -> Iterator[str]:
    """The strongest clues for or against a hypothesis, each sentence once."""
    chosen = [clue for clue in found if clue.name == name and clue.weight * sign > 0]
    texts = dict.fromkeys(clue.text for clue in sorted(chosen, key=lambda clue: -abs(clue.weight)))
    yield from list(texts)[:3]


def _of_alerts(incident: Incident) -> Iterator[Clue]:
    """What its alerts speak for: each rule once for each scope, by the lead, or else the first alert."""
    lead = incident.lead
    known = {registered.name: registered.part for registered in RULES}
    yield from _of_alert(lead, known.get(lead.rule), 1.0)
    told = {(lead.rule, lead.scope)}
    for alert in incident.alerts:
        if (alert.rule, alert.scope) not in told:
            told.add((alert.rule, alert.scope))
            yield from _of_alert(alert, known.get(alert.rule), FOLLOWING)


def _of_alert(alert: Alert, rule: Rule | None, factor: float) -> Iterator[Clue]:
    for name, weight in (rule.points(alert.scope) if rule is not None else {}).items():
        yield Clue(name, factor * weight, f"{alert.text} (step {alert.step}, {alert.label_or_rule})")


def _look(name: str, run: RunReader, incident: Incident) -> str:
    """The command or look for one hypothesis."""
    step, place = incident.lead.began, incident.place or "*"
    module = place.removesuffix(".weight").removesuffix(".bias")
    where = run.place
    looks = {
        "data": f"`vario show {where} 'root:input*' --quantity activation --statistic rms`: did the input change at "
        f"step {step}? If it was not recorded, print the batches of the steps around it",
        "labels": f"count the labels of the batches before and after step {step}: classes, ignored ones, their order",
        "optimizer": f"`vario show {where} '*:pace' --quantity update --statistic max`: did updates per learning rate "
        f"change at step {step}? Print the optimizer's groups and options there",
        "schedule": f"`vario show {where} 'lr*'`: is the learning rate around step {step} the one you planned?",
        "precision": f"train again from a checkpoint before step {step} in float32: if it does not come back, it was "
        "the precision",
        "module": f"`vario show {where} '{module}:*' --quantity activation --statistic rms`: did the output change at "
        f"step {step} while the input did not?",
        "loop": f"check what the loop does between step {step - 1} and {step}: backward, zero_grad, the divisor of the "
        "loss, and code that writes weights",
        "hardware": f"train again from a checkpoint before step {step} on another device: if it comes back there, it "
        "was not the hardware",
        "ranks": f"`vario check {where}`: rules that compare ranks name the first tensor that differs",
        "resume": f"`vario show {where} loss`: does it continue where it ended before the resume? Check that model, "
        "optimizer, scheduler and sampler were all loaded",
    }
    if incident.lead.rule == "straggler" and name == "data":
        return (
            f"`vario show {where} wait_seconds --rank {incident.rank}`; then time that rank's loader without training"
        )
    return looks[name]
