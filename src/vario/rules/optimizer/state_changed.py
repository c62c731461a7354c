"""Optimizer state that something other than the optimizer changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.alerts import Severity
from vario.rules.api.series_state import Streak
from vario.rules.optimizer.unexplained_change import CHANGE

FROM, RESET = ":from:", ":reset"
FEW_CHECKED = 5
"""So many parameters at least, evenly spread over the model, are checked around every update."""
KINDS = ("taken", "reset", "changed")
"""What happened to a parameter's state, the most telling first."""


@rule("exact", needs=CHANGE, stage="optimizer")
def state_changed(step: Step, clean_steps: int = 8) -> Iterator[Finding]:
    """An optimizer's moments that changed between two updates: taken from another parameter, set to zero, or written.

    Why: only the optimizer should change its state. State that was restored to the wrong parameter, or lost, makes
    updates of the wrong size and direction, which no norm of a gradient shows. If weights changed in the same step, a
    checkpoint was loaded: that is only a note. What a loop already does in its first steps is not reported.

    Cause: this parameter's optimizer state was written by something other than the optimizer

    Cause (global): the optimizer's state was changed between two updates: restored to the wrong parameters, reset, or
    loaded from elsewhere

    Points to: optimizer 3, resume 2, hardware 1

    Points to (global): resume 3, optimizer 3

    Next: Check where the optimizer's state is loaded or cleared: its parameters must be in the same order, with the
    same shapes, as when the state was saved.
    """
    rows = step.rows(CHANGE)
    written = tuple(name for name in rows.targets if ":" in name)
    if not written:
        return
    # What a loop does from the start is its way.
    habit = step.memory.get("state_changed habit", Streak)
    owned = tuple(name.partition(":")[0] for name in written)
    is_early = step.number - step.memory.first_step(step.number) < clean_steps
    by_design = habit.update(owned, np.full(len(owned), is_early) | (habit.read("count", owned) > 0))
    found = [name.partition(":") for name, is_habit in zip(written, by_design > 0, strict=True) if not is_habit]
    if not found:
        return
    weights_changed = any(":" not in name for name in rows.targets)
    sizes = dict(zip(rows.targets, rows.statistic("absmax"), strict=True))
    owners = list(dict.fromkeys(name for name, _, _ in found))
    kinds = {name: min((_kind(rest) for owner, _, rest in found if owner == name), key=KINDS.index) for name in owners}
    worst = min(kinds.values(), key=KINDS.index)
    named = [name for name in owners if kinds[name] == worst]
    severity: Severity = "note" if weights_changed else "page" if worst == "taken" else "warn"
    updated = step.facts.trainable or owners
    is_most = len(owners) > 2 and (len(owners) > len(updated) / 2 or _are_spread(owners, step))
    yield Finding(
        f"the optimizer's state of {_words(named, worst, found)} between two updates"
        + (f", and that of {len(owners) - len(named)} more changed" if len(owners) > len(named) else ""),
        CHANGE,
        None if is_most else named[0],
        float(len(owners)) if is_most else float(np.nanmax([sizes[f"{a}:{b}"] for a, _, b in found if a == named[0]])),
        "" if is_most else "absmax",
        scope="global" if is_most else "tensor",
        strength=200.0,
        others=tuple(named[:16]),
        severity=severity,
    )


def _are_spread(owners: Sequence[str], step: Step) -> bool:
    """Whether these are all over a model of which only a few parameters are checked at most steps."""
    places = {name: place for place, name in enumerate(step.facts.shapes)}
    found = sorted(places[name] for name in owners if name in places)
    if len(found) < FEW_CHECKED:
        return False
    return found[-1] - found[0] > len(places) / 2 and bool(np.diff(found).max() < len(places) / 2)


def _kind(rest: str) -> str:
    return "taken" if FROM in f":{rest}" else "reset" if rest.endswith(RESET) else "changed"


def _words(named: Sequence[str], kind: str, found: Sequence[tuple[str, str, str]]) -> str:
    first = f"'{named[0]}'" if len(named) == 1 else f"{number(len(named))} parameters, first '{named[0]}',"
    if kind == "taken":
        other = next(rest.partition(FROM)[2] for name, _, rest in found if name == named[0] and FROM in rest)
        return f"{first} became that of '{other}'"
    return f"{first} {'was set to zero' if kind == 'reset' else 'changed'}"
