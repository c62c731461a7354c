"""Switches that were turned while training ran."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import common_name
from vario.rules.api.series_state import Last

PREFIX = "setting/"
THAWING = ("trainable_parameters", "parameters_in_optimizer")
"""More of these is fine-tuning that goes on with further layers; fewer is something that stopped learning."""


@rule("exact", needs=f"update {PREFIX}")
def settings_change(step: Step, first_step: int = 2) -> Iterator[Finding]:
    """Modules that left training mode, parameters that were frozen, an optimizer option that changed.

    Why: an evaluation that forgets `model.train()`, a callback that freezes a layer, a state that was loaded over the
    options: the run goes on, and trains something else.

    Next: Look at what ran between this step and the one before: an evaluation without `model.train()` after it, a
    callback, a state that was loaded.
    """
    names = tuple(name for name in step.scalars if name.startswith(PREFIX))
    if not names:
        _remember_updated(step)
        return
    values = np.array([step.scalars[name] for name in names])
    before, _ = step.memory.get("settings_change", Last()).swap(names, values, step.number)
    named = [name for name in names if ":" in name and step.number >= first_step]
    for name in named[:8]:
        kind, _, place = name.removeprefix(PREFIX).partition(":")
        mode = "evaluation" if step.scalars[name] else "training"
        what = "is new in the model and was not watched from the start" if kind == "new" else f"went into {mode} mode"
        yield Finding(
            f"'{place}' {what}",
            "weight" if kind == "new" else "activation",
            place,
            step.scalars[name],
            strength=2.0,
            # A model that grows is one that grows; what is said is that the newcomer is not watched.
            severity="note" if kind == "new" else "warn",
        )
    for name, value, last in zip(names, values, before, strict=True):
        if named and (":" in name or name.endswith("modules_in_eval")):
            continue
        if np.isnan(last) or value == last or step.number < first_step:
            continue
        # A schedule of weight decay moves in small steps.
        if not name.endswith("weight_decay") or not 0.67 < value / max(last, 1e-30) < 1.5:
            left = _left(step) if name.endswith("parameters_in_optimizer") and value < last else ""
            what = name.removeprefix(PREFIX).replace("_", " ")
            yield Finding(
                f"{what} went from {number(last)} to {number(value)}" + (f": '{left}' is out" if left else ""),
                "update" if left else "scalar",
                left or name,
                float(value),
                low=float(last),
                high=float(last),
                scope="tensor" if left else "global",
                strength=1.0,
                severity="note" if name.endswith(THAWING) and value > last else "warn",
            )
    _remember_updated(step)


def _left(step: Step) -> str:
    """The place of the parameters that were updated the last time and are not now."""
    updated = step.memory.get("settings_change updated", Last())
    now = set(step.rows("update", "change").targets)
    then = [name for name in updated.names if updated.read("step", (name,))[0] == _latest(updated)]
    return common_name([name for name in then if name not in now]) if now else ""


def _latest(updated: Last) -> float:
    return float(np.nanmax(updated["step"])) if updated.names else -1.0


def _remember_updated(step: Step) -> None:
    rows = step.rows("update", "change")
    if len(rows):
        step.memory.get("settings_change updated", Last()).swap(rows.targets, np.ones(len(rows)), step.number)
