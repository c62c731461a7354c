"""Parameters that get a gradient and do not move."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak

LOW_PRECISION = ("bfloat16", "float16")


@rule("exact", needs="update")
def frozen_param(step: Step, steps: int = 5) -> Iterator[Finding]:
    """A parameter whose update is exactly zero, or that no optimizer holds, although it gets a gradient.

    Why: it does not learn. It was left out of the optimizer, its group has no learning rate, or its updates are
    too small for its dtype and round to nothing.

    Next: Check that one of the optimizer's param groups holds the parameter, with a learning rate above zero. If the
    weights are 16-bit, keep a float32 copy of them.
    """
    change = step.rows("update", "change")
    gradient = step.rows("gradient")
    if not len(change) or not len(gradient) or step.was_skipped or step.scalars.get("lr", 1.0) == 0:
        return
    moved = dict(zip(change.targets, change.statistic("absmax") > 0, strict=True))
    sizes = gradient.statistic("absmax")
    is_stuck = np.array([not moved.get(name, False) for name in gradient.targets], np.bool_) & (sizes > 0)
    count = step.memory.get("frozen_param", Streak()).update(gradient.targets, is_stuck)
    at = np.flatnonzero(count >= steps)
    if len(at) == len(gradient) > 3:
        yield Finding(
            f"no parameter has moved for {int(count[at].min())} updates", "update", scope="global", strength=1e6
        )
        return
    # Weights of normalisations stand at one, where 16-bit numbers are coarse: that is known, and nobody's fault.
    short = [index for index in at if _is_short(step.facts.dtypes.get(gradient.targets[index], ""))]
    matrices = step.facts.are_matrices(gradient.targets)
    rounded = [index for index in short if matrices[index]]
    at = np.array([index for index in at if index not in short or gradient.targets[index] not in moved], np.int64)
    if rounded and all(gradient.targets[index] in moved for index in rounded):
        name = gradient.targets[rounded[0]]
        yield Finding(
            f"the updates of {len(rounded)} parameters round to nothing in {step.facts.dtypes[name]}, as those of "
            f"'{name}': the optimizer's steps are too small for that dtype",
            "update",
            scope="global",
            value=float(len(rounded)),
            strength=1e5,
            others=tuple(gradient.targets[index] for index in rounded[:16]),
        )
    for index in at[:16]:
        name = gradient.targets[index]
        reason = "its update is exactly zero"
        if name not in moved:
            reason = "no optimizer updates it"
        yield Finding(
            text=f"'{name}' gets a gradient but has not moved for {int(count[index])} updates: {reason}",
            quantity="update",
            target=name,
            statistic="absmax",
            value=0.0,
            order=float(index),
            strength=float(sizes[index]),
            since=step.number - int(count[index]) + 1,
        )


def _is_short(dtype: str) -> bool:
    return dtype.removeprefix("torch.") in LOW_PRECISION


@rule("limit", needs="update")
def lost_updates(step: Step, share: float = 0.6, steps: int = 10) -> Iterator[Finding]:
    """Most elements of 16-bit weights do not change although they are updated.

    Why: an update smaller than the spacing of the dtype rounds to nothing. The run looks healthy and learns a part of
    what it could.

    Next: Keep float32 copies of the weights in the optimizer, or round stochastically. If you can do neither, raise the
    learning rate.
    """
    change = step.rows("update", "change")
    short = np.array([_is_short(step.facts.dtypes.get(name, "")) for name in change.targets], np.bool_)
    judged = short & step.facts.are_matrices(change.targets)
    if not judged.any() or step.was_skipped:
        return
    unchanged = change.statistic("zeros")[judged]
    middle = float(np.median(unchanged))
    count = step.memory.get("lost_updates", Streak()).update(("all",), np.array([middle > share]))[0]
    if count >= steps:
        yield Finding(
            f"{number(100 * middle, 3)} % of the elements of 16-bit weights do not change in an update (median of "
            f"{len(unchanged)} matrices): the optimizer's steps round to nothing",
            "update",
            statistic="zeros",
            value=middle,
            high=share,
            scope="global",
            strength=middle,
            since=step.number - int(count) + 1,
        )
