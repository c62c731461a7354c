"""Gradient norms at or above a limit that you set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.quantities import GRADIENT_NORM
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last, Streak

_LOCAL = "gradient_accumulated"


@rule("limit", needs=f"gradient {GRADIENT_NORM} grad-norm", stage="backward")
def gradient_norm_limit(step: Step, limit: float = 0.0, steps: int = 1) -> Iterator[Finding]:
    """The norm of all gradients at or above `limit`, `steps` times in a row; off unless you set a limit.

    Why: if you know the usual norm of a training, a norm beyond it means that an update is about to do damage. A NaN
    counts too.

    Cause: an unusual batch, or the training is becoming unstable

    Next: Look at the batches of these steps, and skip them or go back to an earlier checkpoint. To stop by itself, set
    `actions = {gradient_norm_limit = ["stop"]}`; after a restart that step is not reported again.
    """
    if limit <= 0:
        return
    norm = _norm(step)
    if norm is None:
        return
    count = step.memory.get("gradient_norm_limit", Streak).follow("norm", not norm < limit)
    if count < steps:
        return
    told = step.memory.get("gradient_norm_limit told", Last)
    if told.swap_one("step", step.number, step.number) == step.number:
        return
    again = f" for {count} steps in a row" if steps > 1 else ""
    text = f"the norm of all gradients is {number(norm)}, at or above the limit of {number(limit)}{again}"
    yield Finding(text, "scalar", GRADIENT_NORM, norm, high=limit, scope="global", strength=norm / limit)


@rule("limit", needs=f"gradient {_LOCAL}", stage="backward")
def embedding_norm_limit(step: Step, limit: float = 0.0) -> Iterator[Finding]:
    """The gradient norm of an embedding at or above a limit; off unless you set one.

    Why: instability of large language models often shows in the embedding's gradient first. A checkpoint saved then is
    one to avoid when resuming.

    Cause: tokens with unusual gradients, or the first layers are becoming unstable

    Next: Go back to a checkpoint saved before this step.
    """
    if limit <= 0 or not step.facts.embeddings:
        return
    rows = step.rows(_LOCAL) if _LOCAL in step.quantities else step.rows("gradient")
    norms = rows.statistic("norm")
    for index in np.flatnonzero(~(norms < limit)):
        name = rows.targets[index]
        if name in step.facts.embeddings:
            norm = float(norms[index])
            text = f"the gradient norm of '{name}' is {number(norm)}, at or above the limit of {number(limit)}"
            yield Finding(text, rows.quantity, name, norm, "norm", high=limit, strength=norm / limit)


def _norm(step: Step) -> float | None:
    for name in (GRADIENT_NORM, "grad-norm"):
        if name in step.scalars:
            return step.scalars[name]
    rows = step.rows("gradient")
    return float(np.sqrt(np.sum(rows.statistic("norm") ** 2))) if len(rows) else None
