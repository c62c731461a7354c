"""Switches that were turned while training ran."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.memory import Last
from vario.rules import Finding, Step, rule
from vario.text import number

PREFIX = "setting/"


@rule("exact")
def settings_change(step: Step, first_step: int = 2) -> Iterator[Finding]:
    """Modules that left training mode, parameters that were frozen, an optimizer option that changed.

    Why: an evaluation that forgets `model.train()`, a callback that freezes a layer, a state that was loaded over the
    options: the run goes on, and trains something else.

    Next: what ran between this step and the one before.
    """
    names = tuple(name for name in step.scalars if name.startswith(PREFIX))
    if not names:
        return
    values = np.array([step.scalars[name] for name in names])
    before, _ = step.memory.get("settings_change", Last()).swap(names, values, step.number)
    for name, value, last in zip(names, values, before, strict=True):
        if np.isnan(last) or value == last or step.number < first_step:
            continue
        # A schedule of weight decay moves in small steps.
        if not name.endswith("weight_decay") or not 0.67 < value / max(last, 1e-30) < 1.5:
            what = name.removeprefix(PREFIX).replace("_", " ")
            yield Finding(
                f"{what} went from {number(last)} to {number(value)}",
                "scalar",
                name,
                float(value),
                low=float(last),
                high=float(last),
                scope="global",
                strength=1.0,
                severity="warn",
            )
