"""Inputs of the model that no longer vary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.records import COUNT, MAX, MIN, ROOT
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Longest, Streak
from vario.rules.api.turns import Turns

VARIED = 5
"""Looks in a row at which an input must have varied before."""
ENOUGH = 8
"""The fewest elements of an input that do not agree by chance."""


@rule("exact", needs="activation", stage="batch")
def input_constant(step: Step, looks: int = 2) -> Iterator[Finding]:
    """An input of the model whose elements are all the same number, although they always varied before.

    Why: labels of one class, a blank image, a feature that is no longer filled in: the model learns the constant, and
    the loss may even fall.

    Cause: the batches contain a constant where they had values

    Cause (batch): the batches contain a constant where they had values: check how the loader fills this input, labels
    first

    Points to: data 4, labels 4

    Next: Look at a batch of this step, and at the code that fills the input that is named.
    """
    rows = step.rows("activation")
    at = [index for index, name in enumerate(rows.targets) if name.startswith(f"{ROOT}:input")]
    if not at:
        return
    names, summaries = tuple(rows.targets[index] for index in at), rows.summaries[at]
    is_constant = (summaries[:, MIN] == summaries[:, MAX]) & (summaries[:, COUNT] >= ENOUGH)
    varied = step.memory.get("input_constant varied", Streak).update(names, ~is_constant)
    longest = step.memory.get("input_constant longest", Longest).update(names, varied)
    count = step.memory.get("input_constant", Streak).update(names, is_constant)
    # A mask that is all ones now and then is no fault.
    by_chance = step.memory.get("input_constant turns", Turns).longest(names, is_constant)
    for index in np.flatnonzero((count >= np.maximum(looks, by_chance)) & (longest >= VARIED)):
        value = float(summaries[index, MIN])
        yield Finding(
            f"all {number(summaries[index, COUNT])} elements of '{names[index]}' are {number(value)}, "
            f"{int(count[index])} looks in a row",
            "activation",
            names[index],
            value,
            "absmax",
            scope="batch",
            order=float(rows.order[at[index]]),
            strength=10.0,
            since=step.looks_ago("activation", int(count[index])),
            severity="warn",
        )
