"""Parameters without a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vario.core.records import SUM
from vario.rules import Finding, Rows, Step, rule
from vario.rules.api.alerts import Severity
from vario.rules.api.series_state import Flags, Last, Longest, Streak
from vario.rules.api.turns import Turns


@rule("exact", is_symptom=True, needs="gradient")
def zero_grad(step: Step, steps: int = 5) -> Iterator[Finding]:
    """A trainable parameter whose gradient is exactly zero, or missing, for several steps.

    Why: the parameter does not learn: it is cut off from the loss, its input is all zero, or it is not used.

    Cause: the parameter is unused, gets only zeros as input, or is cut off from the loss

    Cause (global): the loss is cut off from the model, or the gradients are zeroed before the update

    Points to: module 3

    Points to (global): loop 3, precision 2

    Next: Look at the forward pass around it for a `detach`, a `no_grad`, a zero initialisation or an unused branch.
    """
    rows = step.rows("gradient")
    if not len(rows) or step.was_skipped or step.has_nothing_to_learn:
        return
    # A gradient with an Inf has no extremes, and other rules report it.
    is_bad = rows.statistic("nans") + rows.statistic("infs") > 0
    sizes = np.where(is_bad, np.inf, rows.statistic("absmax"))
    known = step.memory.get("zero_grad known", Streak)
    known.update(rows.targets, np.ones(len(rows), np.bool_))
    held = step.memory.get("zero_grad held", Streak)
    weights = step.rows("weight")
    if len(weights):
        held.update(weights.targets, np.ones(len(weights), np.bool_))
        _note_moved(step, weights)
    names = _expected(step, rows.targets, known, held)
    is_missing = np.arange(len(names)) >= len(rows)
    is_zero = is_missing.copy()
    is_zero[: len(rows)] = ~(sizes > 0) & ~np.isnan(sizes)
    count = step.memory.get("zero_grad", Streak).update(names, is_zero)
    # With alternating optimizers a parameter has no gradient for a while: allow what was usual before.
    longest = step.memory.get("zero_grad longest", Longest)
    usual = longest.update(names, np.where(count >= steps, 0.0, count))
    seen = known.read("count", names)
    ever = step.memory.get("zero_grad ever", Streak)
    ever.update(names, ~is_zero | (ever.read("count", names) > 0))
    at_first = np.where(is_missing, 4 * steps, steps)
    needed = np.where(seen > 4 * steps, np.maximum(steps, 2 * usual + 1), at_first)
    needed = np.maximum(needed, step.memory.get("zero_grad turns", Turns).longest(names, is_zero))
    at = np.flatnonzero(count >= needed)
    if not len(at):
        return
    # Heads that take turns look as if they had no gradient to who looks at every second step.
    every = step.interval("gradient")
    if every > 1:
        # Without a gradient no optimizer moves it: it has one in steps that are not watched.
        at = at[~(is_missing & _have_moved(step, names))[at]]
    span = "steps" if every == 1 else f"watched steps, one in {every}"
    if not len(at):
        return
    if len(at) == len(names) > 3:
        text = f"all gradients have been zero for {int(count.min())} {span}"
        yield Finding(text, "gradient", scope="global", strength=1e6)
        return
    found = dict(zip(rows.targets, sizes, strict=True))
    blank = {name for name, size in zip(weights.targets, weights.statistic("absmax"), strict=True) if size == 0}
    lively = {name.partition(".parametrizations.")[0] for name in _matrices(step, rows.targets) if found[name] > 0}
    lively |= {name.rpartition(".")[0] for name in lively}
    was_reached = ever.read("count", names) > 0
    for index in at[:16]:
        what = "has been exactly zero" if names[index] in found else "has been missing"
        is_bias = names[index] in found and names[index].rpartition(".")[0] in lively
        if is_bias and not was_reached[index]:
            continue  # the loss does not depend on it, as with a critic's last bias or one in front of a softmax
        yield Finding(
            text=f"gradient of '{names[index]}' {what} for {int(count[index])} {span}",
            quantity="gradient",
            target=names[index],
            statistic="absmax",
            value=0.0,
            # A weight that is all zero too is the origin.
            order=float(index) - (1e6 if names[index] in blank else 0.0),
            strength=float(count[index]),
            since=step.looks_ago("gradient", int(count[index])),
            severity="note" if every > 1 else _severity(is_bias, bool(was_reached[index]), names[index] in found),
        )


def _note_moved(step: Step, weights: Rows) -> None:
    """Remember which weights have changed between the last two looks at them."""
    last = step.memory.get("zero_grad weights", Last)
    sums = weights.summaries[:, SUM]
    before, _ = last.swap(weights.targets, sums, step.number)
    step.memory.get("zero_grad moved", Last).swap(weights.targets, (before != sums).astype(np.float64), step.number)


def _have_moved(step: Step, names: Sequence[str]) -> Flags:
    """Flag parameters that changed between the last two looks at them."""
    found: Flags = step.memory.get("zero_grad moved", Last).read("value", names) == 1
    return found


def _expected(step: Step, targets: tuple[str, ...], known: Streak, held: Streak) -> tuple[str, ...]:
    """Parameters that should have a gradient: those that have or had one, and on a single rank all trainable ones.

    A target network or an averaged teacher is in no optimizer, so its weights are not recorded: it is not expected to
    have gradients. These are mostly the same as in the previous step.
    """
    names: tuple[str, ...]
    last, num_known, names = step.memory.worked_out.get("zero_grad", ((), (), ()))
    now = known.num_series, held.num_series
    if (last is not targets and last != targets) or num_known != now:
        trainable = step.facts.trainable
        if held.num_series:
            in_optimizers = set(held.names)
            trainable = frozenset(name for name in trainable if name in in_optimizers)
        expected = known.names if step.facts.world_size > 1 else [*known.names, *sorted(trainable)]
        names = tuple(dict.fromkeys([*targets, *expected]))
        names = targets if len(names) == len(targets) else names
        step.memory.worked_out["zero_grad"] = targets, now, names
    return names


def _matrices(step: Step, names: Sequence[str]) -> list[str]:
    return [name for name, is_matrix in zip(names, step.facts.are_matrices(names), strict=True) if is_matrix]


def _severity(is_bias: bool, was_reached: bool, has_gradient: bool) -> Severity:
    """How certain it is that something is wrong.

    A parameter that had a gradient and lost it was cut off. A bias next to a matrix that learns is reached by
    backward(): the loss no longer depends on it. A parameter that never had a gradient may not be meant to have one,
    such as the unused pooling layer of an encoder.
    """
    if is_bias:
        return "note"
    if was_reached:
        return "page"
    return "warn" if has_gradient else "note"
