"""Parameters without a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vario.rules import Finding, Step, rule
from vario.rules.api.alerts import Severity
from vario.rules.api.series_state import Longest, Streak


@rule("exact", is_symptom=True, needs="gradient")
def zero_grad(step: Step, steps: int = 5) -> Iterator[Finding]:
    """A trainable parameter whose gradient is exactly zero, or missing, for several steps.

    Why: nothing that is learnt reaches it: it is cut off from the loss, its input is all zero, or it is not used.

    Next: Look at the forward pass around it for a `detach`, a `no_grad`, a zero initialisation or an unused branch.
    """
    rows = step.rows("gradient")
    if not len(rows) or step.was_skipped:
        return
    # A gradient that holds an Inf shows no extremes, and is none of this rule's business.
    sizes = np.where(rows.statistic("bad") > 0, np.inf, rows.statistic("absmax"))
    found = dict(zip(rows.targets, sizes, strict=True))
    known = step.memory.get("zero_grad known", Streak())
    known.update(rows.targets, np.ones(len(rows), np.bool_))
    # Who should have one: those that had one before, and on a single rank, which holds everything, all that can.
    expected = known.names if step.facts.world_size > 1 else [*known.names, *step.facts.trainable]
    names = tuple(dict.fromkeys([*rows.targets, *expected]))
    is_zero = np.array([not found.get(name, 0.0) > 0 and not np.isnan(found.get(name, 0.0)) for name in names])
    count = step.memory.get("zero_grad", Streak()).update(names, is_zero)
    # Optimizers that take turns leave a parameter without a gradient for a while: what was usual before is usual.
    longest = step.memory.get("zero_grad longest", Longest())
    usual = longest.update(names, np.where(count >= steps, 0.0, count))
    seen = known.read("count", names)
    ever = step.memory.get("zero_grad ever", Streak())
    ever.update(names, ~is_zero | (ever.read("count", names) > 0))
    needed = np.where(
        seen > 4 * steps, np.maximum(steps, 2 * usual + 1), [steps if name in found else 4 * steps for name in names]
    )
    at = np.flatnonzero(count >= needed)
    if len(at) == len(names) > 3:
        yield Finding(f"all gradients are zero for {int(count.min())} steps", "gradient", scope="global", strength=1e6)
        return
    weights = step.rows("weight")
    blank = {name for name, size in zip(weights.targets, weights.statistic("absmax"), strict=True) if size == 0}
    lively = {name.rpartition(".")[0] for name in _matrices(step, rows.targets) if found[name] > 0}
    was_reached = ever.read("count", names) > 0
    for index in at[:16]:
        what = "is exactly zero" if names[index] in found else "is missing"
        is_bias = names[index] in found and names[index].rpartition(".")[0] in lively
        yield Finding(
            text=f"gradient of '{names[index]}' {what} for {int(count[index])} steps",
            quantity="gradient",
            target=names[index],
            statistic="absmax",
            value=0.0,
            # A weight that is all zero as well is where it comes from.
            order=float(index) - (1e6 if names[index] in blank else 0.0),
            strength=float(count[index]),
            since=step.number - int(count[index]) + 1,
            severity=_severity(is_bias, bool(was_reached[index]), names[index] in found),
        )


def _matrices(step: Step, names: Sequence[str]) -> list[str]:
    return [name for name, is_matrix in zip(names, step.facts.are_matrices(names), strict=True) if is_matrix]


def _severity(is_bias: bool, was_reached: bool, has_gradient: bool) -> Severity:
    """How sure it is that something is wrong.

    What had a gradient and lost it was cut off. A bias beside a matrix that learns is reached by backward: the loss
    does not depend on it, as with a critic's last bias. What never had a gradient may not be meant to have one, as the
    pooling layer of an encoder that nobody asks.
    """
    if is_bias:
        return "note"
    if was_reached:
        return "page"
    return "warn" if has_gradient else "note"
