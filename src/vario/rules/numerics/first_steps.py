"""Runs that are wrong from their first step: they have no past to differ from, so absolute knowledge speaks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vario.core.quantities import GUESS_CLASSES, GUESS_SQUARES, LOSS, LOSS_BACKWARD, LOSS_LOCAL, LOSSES
from vario.core.records import COUNT, MAX, MIN, ROOT
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last

FIRST = 16
"""Steps in which a start is judged."""
ABOVE = 1.5
"""How many times the cost of a guess, and one more, the first losses are if outputs are far too sure."""
SQUARES_ABOVE, LEAST_SQUARES = 25.0, 1.0
"""The same for squares, compared with the mean square of the targets."""
LATELY, LEAST_AGE = 3, 5
RISEN = {GUESS_CLASSES: 1.3, GUESS_SQUARES: 6.0, "": 20.0}
"""How many times its start, or the cost of a guess, a loss is that rises instead of falling."""
LARGE_UPDATE, USUAL_UPDATE = 0.02, "usually about 0.1 %"
LARGE_INPUT, LARGE_OUTPUT = 20.0, 10.0
GROWN, DEAD = 1e4, 1e-5
"""How many times larger or smaller a signal may be at the end of a model than at its beginning."""
LEAST_MODULES = 4


@rule("limit", needs=" ".join(LOSSES), stage="loss", is_symptom=True)
def start_above_chance(step: Step) -> Iterator[Finding]:
    """A loss that starts far above that of a guess.

    Why: a fresh model knows nothing, so its loss is about that of a guess: log(classes) for a choice, the mean square
    of the targets for squared errors. A loss far above it means that outputs are large and wrong: the initialisation is
    too wide, inputs or targets are not normalised, or a pre-trained model meets labels that it was not made for.

    Cause: the first outputs are large and wrong: the initialisation, or labels of another kind

    Points to (global): module 3, data 2, labels 2

    Next: Look at the size of the outputs and inputs of the first step: `vario show '*:output' --quantity activation
    --statistic rms`.
    """
    losses = _losses(step)
    if len(losses) != 3 or _flag(step, "above"):
        return
    guess, kind = _guess(step)
    start = losses[0]
    is_above = {
        GUESS_CLASSES: start > ABOVE * guess + 1,
        GUESS_SQUARES: start > max(SQUARES_ABOVE * guess, LEAST_SQUARES),
    }.get(kind, False)
    if not is_above:
        return
    cost = (
        f"a guess among {number(math.exp(guess))} classes costs {number(guess, 3)}"
        if kind == GUESS_CLASSES
        else f"predicting zero costs about {number(guess, 3)}"
    )
    yield Finding(
        f"the loss starts at {number(start)}; {cost}",
        "scalar",
        _name(step),
        start,
        high=guess,
        scope="global",
        strength=math.log(start / guess),
        since=step.number - 2,
        severity="note",
        cause=_of_outputs(step),
    )
    _flag(step, "above", is_set=True)


@rule("limit", needs=" ".join(LOSSES), stage="optimizer")
def start_diverges(step: Step) -> Iterator[Finding]:
    """A loss that rises in the first dozen steps, above its start and above that of a guess.

    Why: the loss of a model that begins to learn falls at first. Updates that are too large, inputs that are not
    normalised or a loss of the wrong sign make it rise. This is reported before anything overflows.

    Cause: the learning rate is too high, inputs are not normalised, or a term of the loss has the wrong sign

    Points to (global): schedule 4, data 1, module 1, optimizer 1

    Next: Lower the learning rate tenfold, or lengthen its warm-up, and compare the first dozen steps.
    """
    losses = _losses(step)
    if len(losses) < LEAST_AGE or _flag(step, "diverges"):
        return
    guess, kind = _guess(step)
    if not kind and not _share(step) > LARGE_UPDATE:
        return  # of another objective only updates that are too large as well say that it is going wrong
    lately = losses[-LATELY:]
    start = max(losses[0], guess, 1e-12)
    middle = float(np.median(lately))
    if not (middle > RISEN[kind] * start and min(lately) > start):
        return
    share = _share(step)
    yield Finding(
        f"the loss rises from {number(losses[0])} to {number(losses[-1])} in the first {len(losses)} steps"
        + (f"; a guess costs {number(guess, 3)}" if kind == GUESS_CLASSES else "")
        + (f"; updates are {number(100 * share, 3)} % of the weights, {USUAL_UPDATE}" if share > LARGE_UPDATE else ""),
        "scalar",
        _name(step),
        losses[-1],
        high=start,
        scope="global",
        strength=math.log(middle / start),
        since=step.number - len(losses) + 1,
        cause=_of_rise(step, share),
    )
    _flag(step, "diverges", is_set=True)


@rule("limit", needs="activation")
def start_signal(step: Step) -> Iterator[Finding]:
    """Outputs that explode or vanish from module to module in the first step.

    Why: the scale of the initialisation compounds with depth. Ten thousand times larger ends in overflow; a hundred
    thousand times smaller means that the output does not depend on the input, and early layers get no gradient.

    Cause: the initialisation: the scale of the weights does not fit the depth of the model

    Points to (global): module 4, precision 1

    Next: Look at the outputs in the order of the forward pass: `vario show '*:output' --quantity activation --statistic
    rms`, and at the scale with which these modules are initialised.
    """
    rows = step.rows("activation")
    if not len(rows) or step.number != step.memory.first_step(step.number):
        return
    sizes = rows.statistic("rms")
    at = [
        index
        for index, name in enumerate(rows.targets)
        if name.endswith(":output") and rows.summaries[index, COUNT] > 1
    ]
    at = [index for index in sorted(at, key=lambda index: rows.order[index]) if sizes[index] > 0]
    if len(at) < LEAST_MODULES or not np.isfinite(sizes[at]).all():
        return
    quarter = max(1, len(at) // 4)
    first, last = float(np.median(sizes[at[:quarter]])), float(np.median(sizes[at[-quarter:]]))
    if DEAD < last / first < GROWN:
        return
    has_grown = last > first
    name = rows.targets[at[-1]].partition(":")[0]
    yield Finding(
        f"outputs {'grow' if has_grown else 'die'} over depth: {number(first, 3)} in the first modules, "
        f"{number(last, 3)} in the last ones, such as '{name}'",
        "activation",
        statistic="rms",
        value=last,
        high=first,
        scope="global",
        strength=abs(math.log(last / first)),
        others=tuple(rows.targets[index] for index in at[-4:]),
    )


@rule("limit", needs="weight", stage="weight")
def start_symmetric(step: Step) -> Iterator[Finding]:
    """A matrix whose elements are all the same number, other than zero, in the first step.

    Why: units that start alike get the same gradient and stay alike, so the layer learns as if it had one unit.

    Cause: this matrix was initialised with a constant

    Points to: module 5

    Next: Look at how this matrix is initialised. A matrix of zeros is often intended, any other constant hardly ever.
    """
    rows = step.rows("weight")
    if not len(rows) or step.number != step.memory.first_step(step.number):
        return
    lows, highs = rows.summaries[:, MIN], rows.summaries[:, MAX]
    is_one = (lows == highs) & (lows != 0) & (rows.summaries[:, COUNT] >= LEAST_MATRIX)
    is_one &= step.facts.are_matrices(rows.targets) & np.array([name in step.facts.trainable for name in rows.targets])
    for index in np.flatnonzero(is_one)[:4]:
        name = rows.targets[index]
        if min(step.facts.shapes.get(name, (1,))) < 2:
            continue  # scales of channels, kept with dimensions of one
        yield Finding(
            f"all {number(rows.summaries[index, COUNT])} elements of '{name}' are {number(lows[index])}",
            "weight",
            name,
            float(lows[index]),
            "absmax",
            strength=5.0,
        )


@rule("limit", needs="weight", stage="weight")
def start_wide(step: Step) -> Iterator[Finding]:
    """A matrix or a table of embeddings that is trained and whose elements are far larger than usual in the first step.

    Why: initialisations give elements a root mean square of at most about one. Layers far above that drown out the
    others, saturate what follows, and hardly move at usual learning rates.

    Cause: this matrix was initialised far too wide, or scaled after it was initialised

    Points to: module 5

    Next: Look at how this matrix is initialised, and with which standard deviation: `vario show NAME --quantity weight
    --statistic rms`.
    """
    rows = step.rows("weight")
    if not len(rows) or step.number != step.memory.first_step(step.number):
        return
    sizes = rows.statistic("rms")
    is_wide = (sizes > WIDE) & (rows.summaries[:, COUNT] >= LEAST_MATRIX)
    is_wide &= step.facts.are_matrices(rows.targets) & np.array([name in step.facts.trainable for name in rows.targets])
    found = [rows.targets[index] for index in np.flatnonzero(is_wide)]
    if not found:
        return
    widest = max(found, key=lambda name: sizes[rows.targets.index(name)])
    size = float(sizes[rows.targets.index(widest)])
    yield Finding(
        f"elements of '{widest}' start with a root mean square of {number(size, 3)}, usually at most about 1",
        "weight",
        widest,
        size,
        "rms",
        high=WIDE,
        strength=math.log(size),
        severity="note",
        others=tuple(name for name in found if name != widest)[:4],
    )


LEAST_MATRIX = 16
WIDE = 8.0


def _name(step: Step) -> str | None:
    return next((known for known in (LOSS_LOCAL, LOSS, LOSS_BACKWARD) if known in step.scalars), None)


def _losses(step: Step) -> list[float]:
    """The losses of the run's first steps so far, if this is one of them and all are there and positive."""
    name = _name(step)
    age = 0 if name is None else step.number - step.memory.first_step(step.number)
    if age >= FIRST or name is None:
        return []
    memory = step.memory.get("first steps", Last)
    names = tuple(f"loss {back}" for back in range(age + 1))
    memory.swap((names[-1],), np.array([step.scalars[name]]), step.number)
    for known in (GUESS_CLASSES, GUESS_SQUARES):
        if known in step.scalars:
            row = memory.row(known)
            memory["value"][row] = np.fmax(memory["value"][row], step.scalars[known])
    share = _update_share(step)
    if math.isfinite(share):
        row = memory.row("share")
        memory["value"][row] = np.fmax(memory["value"][row], share)
    _remember_sizes(step, memory)
    found = memory.read("value", names)
    return found.tolist() if np.isfinite(found).all() and (found > 0).all() else []


def _update_share(step: Step) -> float:
    """The middle share of weights that the updates of this step are, of matrices that did not start at zero."""
    rows = step.rows("update", "ratio")
    values = rows.statistic("max")[step.facts.are_matrices(rows.targets)]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.nan


def _remember_sizes(step: Step, memory: Last) -> None:
    """The sizes of the model's inputs and its outputs, where activations are recorded."""
    rows = step.rows("activation")
    if not len(rows):
        return
    sizes, indices = rows.statistic("rms"), step.facts.are_indices(rows.targets, rows.summaries)
    for side in ("input", "output"):
        found = [
            size
            for name, size, is_index in zip(rows.targets, sizes, indices, strict=True)
            if name.startswith(f"{ROOT}:{side}") and not is_index and math.isfinite(size)
        ]
        if found:
            row = memory.row(side)
            memory["value"][row] = np.fmax(memory["value"][row], max(found))


def _guess(step: Step) -> tuple[float, str]:
    """What a model that knows nothing costs, and which number says so."""
    memory = step.memory.get("first steps", Last)
    classes, squares = memory.one("value", GUESS_CLASSES), memory.one("value", GUESS_SQUARES)
    if classes > 1:
        return math.log(classes), GUESS_CLASSES
    return (squares, GUESS_SQUARES) if squares > 0 else (0.0, "")


def _share(step: Step) -> float:
    return step.memory.get("first steps", Last).one("value", "share")


def _flag(step: Step, what: str, *, is_set: bool = False) -> bool:
    """Whether this was told of the run, or remember that it was."""
    memory = step.memory.get("first steps told", Last)
    if is_set:
        memory.swap((what,), np.ones(1), step.number)
    return memory.one("value", what) == 1


def _of_outputs(step: Step) -> str:
    """Why outputs are large, if what was recorded of the first steps says so."""
    memory = step.memory.get("first steps", Last)
    given, output = memory.one("value", "input"), memory.one("value", "output")
    if given > LARGE_INPUT:
        return f"the inputs are not normalised: their root mean square is {number(given, 3)}"
    if output > LARGE_OUTPUT:
        return (
            f"the initialisation is too wide: the first outputs have a root mean square of {number(output, 3)} from "
            f"inputs of {number(given, 3)}"
            if math.isfinite(given)
            else f"the initialisation is too wide: the first outputs have a root mean square of {number(output, 3)}"
        )
    return ""


def _of_rise(step: Step, share: float) -> str:
    if share > LARGE_UPDATE:
        return (
            f"the learning rate is too high, or has no warm-up: the first updates were {number(100 * share, 3)} % of "
            f"the weights, {USUAL_UPDATE}"
        )
    return _of_outputs(step) or "updates go the wrong way: the sign of the loss or a term of it, or the learning rate"
