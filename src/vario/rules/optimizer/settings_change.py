"""Settings that changed during training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import common_name
from vario.rules.api.series_state import Last

PREFIX = "setting/"
THAWING = ("trainable_parameters", "parameters_in_optimizer")
"""If these rise, fine-tuning unfreezes more layers; if they fall, something stopped learning."""


@rule("exact", needs=f"update {PREFIX}")
def settings_change(step: Step, first_step: int = 2) -> Iterator[Finding]:
    """A module that left training mode, a parameter that was frozen, or an optimizer option that changed.

    Why: an evaluation that forgets `model.train()`, a callback that freezes a layer, or a loaded state that overwrites
    the options. The run continues, but trains something else.

    Cause: a setting of the model or its optimizer changed: training mode, which parameters are trained, or an option

    Points to: module 4, loop 2

    Points to (global): optimizer 4, loop 2, resume 1

    Next: Check what ran between this step and the previous one: an evaluation without `model.train()` after it, a
    callback, a state that was loaded.
    """
    names = tuple(name for name in step.scalars if name.startswith(PREFIX))
    if not names:
        _remember_updated(step)
        return
    values = np.array([step.scalars[name] for name in names])
    before, _ = step.memory.get("settings_change", Last).swap(names, values, step.number)
    named = [name for name in names if ":" in name and step.number >= first_step]
    for name in named[:16]:
        kind, _, place = name.removeprefix(PREFIX).partition(":")
        if kind in ("attribute", "was"):
            if kind == "attribute":
                yield from _attribute(place, step.scalars.get(f"{PREFIX}was:{place}", np.nan), step.scalars[name])
            continue
        mode = "evaluation" if step.scalars[name] else "training"
        what = "was added to the model later and is not watched" if kind == "new" else f"switched to {mode} mode"
        yield Finding(
            f"'{place}' {what}",
            "weight" if kind == "new" else "activation",
            place,
            step.scalars[name],
            strength=2.0,
            # A model may grow on purpose; the note only says that the new module is not watched.
            severity="note" if kind == "new" else "warn",
        )
    for name, value, last in zip(names, values, before, strict=True):
        if named and (":" in name or name.endswith("modules_in_eval")):
            continue
        if np.isnan(last) or value == last or step.number < first_step:
            continue
        if not _is_scheduled(step, name, float(last), float(value)):
            left = _left(step) if name.endswith("parameters_in_optimizer") and value < last else ""
            what = _words(name)
            yield Finding(
                f"{what} changed from {number(last)} to {number(value)}" + (f": '{left}' was removed" if left else ""),
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


STEERING = ("eps", "momentum", "p", "scale", "scaling", "dropout", "top_k", "k", "num_heads", "temperature", "base")
"""Attributes that are known to decide what a module computes; of others, a change is only noted."""


def _attribute(place: str, old: float, new: float) -> Iterator[Finding]:
    """A number of a module that changed."""
    module, _, name = place.rpartition(".")
    if name == "p" and 0.67 < new / max(old, 1e-30) < 1.5:
        return  # a schedule of dropout
    yield Finding(
        f"'{name}' of '{module}' changed from {number(old)} to {number(new)}",
        "activation",
        module,
        new,
        low=old,
        high=old,
        strength=2.0,
        severity="warn" if name in STEERING else "note",
        cause=f"something set '{name}' of '{module}' during training",
    )


def _is_scheduled(step: Step, name: str, last: float, value: float) -> bool:
    """Whether a change is as small as those that schedules make, or comes with a change of the rate."""
    option = name.removeprefix(PREFIX).split("/")
    if any(part.startswith("beta") or part == "momentum" for part in option):
        if step.is_scheduled or "lr_scheduled" in step.scalars:
            return True  # a scheduler such as OneCycleLR sets both, also when it is created
        last, value = 1 - last, 1 - value
    elif "weight_decay" not in option:
        return False
    return 0.67 < value / max(last, 1e-30) < 1.5


def _words(name: str) -> str:
    """A setting in words: `setting/1/eps/2` is eps of the third group of the second optimizer."""
    parts = name.removeprefix(PREFIX).split("/")
    optimizer = f" of optimizer {parts.pop(0)}" if parts[0].isdigit() else ""
    group = f" of group {parts.pop()}" if parts[-1].isdigit() else ""
    return parts[0].replace("_", " ") + group + optimizer


def _left(step: Step) -> str:
    """The common name of the parameters that were updated last time but not in this step."""
    updated = step.memory.get("settings_change updated", Last)
    now = set(step.rows("update", "change").targets)
    then = [name for name in updated.names if updated.read("step", (name,))[0] == _latest(updated)]
    return common_name([name for name in then if name not in now]) if now else ""


def _latest(updated: Last) -> float:
    return float(np.nanmax(updated["step"])) if updated.names else -1.0


def _remember_updated(step: Step) -> None:
    rows = step.rows("update", "change")
    if len(rows):
        step.memory.get("settings_change updated", Last).swap(rows.targets, np.ones(len(rows)), step.number)
