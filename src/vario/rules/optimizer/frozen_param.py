"""Parameters that get a gradient but do not change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.alerts import Severity
from vario.rules.api.series_state import Flags, Longest, Streak, Values

LOW_PRECISION = ("bfloat16", "float16")


@rule("exact", needs="update")
def frozen_param(step: Step, steps: int = 5) -> Iterator[Finding]:
    """A parameter that gets a gradient, but whose update is exactly zero or that is in no optimizer.

    Why: it does not learn. It is missing from the optimizer, its group's learning rate is zero, or its updates are too
    small for its dtype and round to zero.

    Cause: this parameter is not trained: it is in no optimizer, its learning rate is zero, or its updates round to zero

    Cause (global): the optimizer does not update the weights

    Points to: optimizer 4, precision 1

    Points to (global): optimizer 3, schedule 2, precision 1

    Next: Check that the parameter is in one of the optimizer's param groups, with a learning rate above zero. If the
    weights are 16-bit, keep a float32 copy of them.
    """
    change = step.rows("update", "change")
    gradient = step.rows("gradient")
    if not len(change) or not len(gradient) or step.was_skipped or _is_at_rest(step):
        return
    moved = dict(zip(change.targets, change.statistic("absmax") > 0, strict=True))
    sizes = gradient.statistic("absmax")
    is_stuck = np.array([not moved.get(name, False) for name in gradient.targets], np.bool_) & (sizes > 0)
    # What is left of a gradient after training has converged rounds to zero as well.
    largest = step.memory.get("frozen_param largest", Longest).update(gradient.targets, sizes)
    is_stuck &= ~_are_rounding(gradient.targets, sizes) & (sizes > ROUNDING * largest)
    ever = step.memory.get("frozen_param ever", Streak)
    ever.update(change.targets, np.ones(len(change), np.bool_))
    count = step.memory.get("frozen_param", Streak).update(gradient.targets, is_stuck)
    at = np.flatnonzero(count >= steps)
    if len(at) == len(gradient) > 3:
        yield Finding(
            f"no parameter has moved for {int(count[at].min())} updates", "update", scope="global", strength=1e6
        )
        return
    # Weights of normalisation layers are near one, where 16-bit numbers are coarse: expected, not a fault.
    short = [index for index in at if _is_short(step.facts.dtypes.get(gradient.targets[index], ""))]
    matrices = step.facts.are_matrices(gradient.targets)
    rounded = [index for index in short if matrices[index]]
    at = np.array([index for index in at if index not in short or gradient.targets[index] not in moved], np.int64)
    if rounded and all(gradient.targets[index] in moved for index in rounded):
        name = gradient.targets[rounded[0]]
        yield Finding(
            f"the updates of {len(rounded)} parameters round to zero in {step.facts.dtypes[name]}, such as those of "
            f"'{name}': the optimizer's updates are too small for that dtype",
            "update",
            scope="global",
            value=float(len(rounded)),
            strength=1e5,
            others=tuple(gradient.targets[index] for index in rounded[:16]),
        )
    for index in at[:16]:
        name = gradient.targets[index]
        reason = "its update is exactly zero"
        severity: Severity | None = None
        if name not in moved:
            reason = "no optimizer updates it"
            # The layers of a fixed network through which a loss is computed get gradients that nobody uses.
            severity = None if ever.read("count", (name,))[0] else "note"
        yield Finding(
            text=f"'{name}' gets a gradient but has not moved for {int(count[index])} updates: {reason}",
            quantity="update",
            target=name,
            statistic="absmax",
            value=0.0,
            order=float(index),
            strength=float(sizes[index]),
            since=step.looks_ago("update", int(count[index])),
            severity=severity,
        )


ROUNDING = 1e-5
"""A bias in front of a normalisation has a gradient of zero in theory: what is left of it is rounding."""


def _are_rounding(targets: Sequence[str], sizes: Values) -> Flags:
    """Flag gradients that are nothing beside the largest of the same module."""
    modules = [name.rpartition(".")[0] for name in targets]
    largest: dict[str, float] = {}
    for module, size in zip(modules, sizes.tolist(), strict=True):
        largest[module] = max(largest.get(module, 0.0), size)
    return sizes < ROUNDING * np.array([largest[module] for module in modules])


def _is_at_rest(step: Step) -> bool:
    return step.scalars.get("lr") == 0 or step.is_rate_spent


def _is_short(dtype: str) -> bool:
    return dtype in LOW_PRECISION


@rule("limit", needs="update")
def lost_updates(step: Step, share: float = 0.6, steps: int = 10) -> Iterator[Finding]:
    """Most elements of 16-bit weights do not change when they are updated.

    Why: an update smaller than the spacing of the dtype rounds to zero. The run looks healthy but learns less than it
    could.

    Cause: the optimizer's updates are too small for 16-bit weights and round to zero

    Points to: precision 5

    Next: Keep float32 copies of the weights in the optimizer, or use stochastic rounding. If you can do neither, raise
    the learning rate.
    """
    change = step.rows("update", "change")
    short = np.array([_is_short(step.facts.dtypes.get(name, "")) for name in change.targets], np.bool_)
    judged = short & step.facts.are_matrices(change.targets)
    if not judged.any() or step.was_skipped or step.is_rate_spent:
        return
    unchanged = change.statistic("zeros")[judged]
    middle = float(np.median(unchanged))
    count = step.memory.get("lost_updates", Streak).update(("all",), np.array([middle > share]))[0]
    if count >= step.looks_for("update", steps):
        yield Finding(
            f"{number(100 * middle, 3)} % of the elements of 16-bit weights do not change in an update (median of "
            f"{len(unchanged)} matrices): the optimizer's updates round to zero",
            "update",
            statistic="zeros",
            value=middle,
            high=share,
            scope="global",
            strength=middle,
            since=step.looks_ago("update", int(count)),
        )
