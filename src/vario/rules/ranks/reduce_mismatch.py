"""Gradient reductions that are not a mean."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, RanksStep, rule
from vario.rules.api.series_state import Streak, Values


@rule("exact", over="ranks", needs="gradient gradient_local gradient_accumulated")
def reduce_mismatch(step: RanksStep, factor: float = 1.01, steps: int = 2) -> Iterator[Finding]:
    """A reduced gradient that is larger than the mean of the ranks' gradients.

    Why: the norm of a mean is never larger than the mean of the norms. If it is, gradients were summed instead of
    averaged, or scaled: the effective learning rate is not what you set.

    Cause: its gradient is summed, scaled or missing from the reduction

    Cause (global): gradients are summed over ranks or micro-steps where they should be averaged

    Points to: ranks 4, hardware 2

    Next: Check that gradients are divided by the world size and by the number of micro-steps, each once. If one was not
    reduced at all, check that its parameter is in the model that DDP wraps.
    """
    for quantity in ("gradient_accumulated", "gradient_local"):
        names, local = step.table(quantity, "norm")
        if len(names):
            break
    else:
        return
    if quantity == "gradient_local" and any(
        frame.micro_step for one in step.steps.values() for frame in one.frames if frame.quantity == quantity
    ):
        return  # the norms of several passes do not give the norm of their sum
    reduced: dict[str, float] = {}
    for rank in step.ranks:
        rows = step.steps[rank].rows("gradient")
        for name, norm in zip(rows.targets, rows.statistic("norm"), strict=True):
            reduced.setdefault(name, float(norm))
    common = [index for index, name in enumerate(names) if name in reduced]
    if len(step.ranks) < 2 or not common:
        return
    found = np.array([reduced[names[index]] for index in common])
    mean = local[:, common].mean(axis=0)
    yield from _not_reduced(step, [names[index] for index in common], found, local[:, common], steps)
    is_over = found > factor * mean + 1e-12
    count = step.memory.get("reduce_mismatch", Streak).update(tuple(names[index] for index in common), is_over)
    at = np.flatnonzero(count >= steps)
    if not len(at):
        return
    with np.errstate(all="ignore"):
        ratios = found / mean
    worst = int(at[np.argmax(ratios[at])])
    most = len(at) > len(common) / 2
    yield Finding(
        text=f"reduced gradient of '{names[common[worst]]}' has norm {number(found[worst])}, above the ranks' mean "
        f"{number(mean[worst])}" + (f"; so have {len(at)} of {len(common)}" if len(at) > 1 else ""),
        quantity="gradient",
        target=None if most else names[common[worst]],
        statistic="norm",
        value=found[worst],
        high=mean[worst],
        scope="global" if most else "tensor",
        strength=float(np.log(ratios[worst])),
        others=tuple(names[common[index]] for index in at[:16]),
    )


def _not_reduced(step: RanksStep, names: list[str], reduced: Values, local: Values, steps: int) -> Iterator[Finding]:
    """Gradients that equal those of one rank, although the ranks' gradients differ and others were reduced."""
    with np.errstate(all="ignore"):
        is_own = (np.abs(local - reduced) < 1e-6 * reduced).any(axis=0) & (np.ptp(local, axis=0) > 1e-3 * reduced)
    is_own &= reduced > 0
    if is_own.all():
        return  # nothing is reduced at this point, by design
    count = step.memory.get("not_reduced", Streak).update(tuple(names), is_own)
    for index in np.flatnonzero(count >= steps)[:16]:
        yield Finding(
            text=f"gradient of '{names[index]}' is the one of a single rank: it was not reduced",
            quantity="gradient",
            target=names[index],
            statistic="norm",
            value=reduced[index],
            strength=10.0,
            since=step.number - int(count[index]) + 1,
        )
