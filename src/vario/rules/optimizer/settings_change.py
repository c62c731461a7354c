"""Settings that changed during training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import common_name
from vario.rules.api.series_state import Last

PREFIX = "setting/"
SINCE = f"{PREFIX}since"
"""The first step in which what is logged now may have changed."""
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
    names = tuple(name for name in step.scalars if name.startswith(PREFIX) and name != SINCE)
    if not names:
        _remember_updated(step)
        return
    values = np.array([step.scalars[name] for name in names])
    before, _ = step.memory.get("settings_change", Last).swap(names, values, step.number)
    named = [name for name in names if ":" in name and step.number >= first_step]
    for name in named[:16]:
        for finding in _of_module(step, name):
            yield replace(finding, unseen_from=_unseen_from(step))
    for name, value, last in zip(names, values, before, strict=True):
        if name.endswith("all_in_eval") or (named and (":" in name or name.endswith("modules_in_eval"))):
            continue
        if name.endswith("trainable_parameters") and any(":" in other and "frozen:" in other for other in named):
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
                cause=_cause_of_option(name, value < last),
                unseen_from=_unseen_from(step) if name.endswith(OF_MODEL) else None,
            )
    _remember_updated(step)


def _unseen_from(step: Step) -> int | None:
    """The first step in which the model's settings may have changed, if nobody looked at them in the step before."""
    since = step.scalars.get(SINCE)
    return None if since is None or since >= step.number else int(since)


def _of_module(step: Step, name: str) -> Iterator[Finding]:
    """What happened to one module or parameter."""
    kind, _, place = name.removeprefix(PREFIX).partition(":")
    value = step.scalars[name]
    if kind == "attribute":
        yield from _attribute(place, step.scalars.get(f"{PREFIX}was:{place}", np.nan), value)
    elif kind == "frozen":
        yield Finding(
            f"'{place}' no longer requires a gradient, so it is not trained any more",
            "weight",
            place,
            value,
            strength=2.0,
            severity="warn",
            cause=f"'{place}' was frozen during training: something set its `requires_grad` to False",
        )
    elif kind == "left_out":
        yield Finding(
            f"'{place}' gets gradients and is in no optimizer"
            + (f", as {value:.0f} parameters are" if value > 1 else ""),
            "update",
            place,
            value,
            strength=2.0,
            since=step.memory.first_step(step.number),
            severity="note",
            cause=f"'{place}' is missing from the optimizer from the start: it is not trained",
        )
    elif kind == "no_gradient":
        yield Finding(
            f"'{place}' is in the optimizer and has had no gradient so far, like {number(100 * value, 2)} % of the "
            "parameters of its optimizer",
            "update",
            place,
            value,
            strength=2.0 + value,
            since=step.memory.first_step(step.number),
            severity="warn" if value > MOST_UNUSED else "note",
            cause=f"'{place}' is cut off from the loss and gets no gradient: a `detach`, a `no_grad`, checkpointing of "
            "inputs that need no gradient, or a part of the model that is not used",
        )
    elif kind == "new":
        # A model may grow on purpose; the note only says that the new module is not watched.
        yield Finding(
            f"'{place}' was added to the model later and is not watched",
            "weight",
            place,
            value,
            strength=2.0,
            severity="note",
            cause=f"'{place}' is a new parameter: a module was replaced, or a weight no longer shared. "
            "It is trained only if it is in an optimizer",
        )
    elif kind == "eval":
        mode = "evaluation" if value else "training"
        cause = "an evaluation set it to evaluation mode, and `model.train()` did not follow" if value else ""
        yield Finding(
            f"'{place}' switched to {mode} mode", "activation", place, value, strength=2.0, severity="warn", cause=cause
        )


MOST_UNUSED = 0.5
"""The share of an optimizer's parameters without a gradient from which on it is no unused head."""
OF_MODEL = ("trainable_parameters", "modules_in_eval")


def _cause_of_option(name: str, has_fallen: bool) -> str:
    """What an option that changed decides."""
    if name.endswith(THAWING) and has_fallen:
        return "parameters were frozen or left the optimizer: they are not trained any more"
    if name.endswith("modules_in_eval"):
        return "" if has_fallen else "modules were set to evaluation mode, and `model.train()` did not follow"
    words = _words(name)
    return (
        f"the {words} of the optimizer was changed: by code, a callback, or options that were loaded" if words else ""
    )


MEANINGS = (
    (("mask", "causal"), "which positions its attention sees: the mask"),
    (("dropout", "drop"), "its dropout"),
    (("residual", "skip_connection", "shortcut"), "whether its residual connection is used"),
    (("renormal", "rescale"), "whether what it weighs adds up to one"),
    (("norm",), "whether its normalisation is used or skipped, and how it is done"),
    (("offset", "position", "theta", "rope", "base"), "how positions are counted"),
    (("eps",), "the number that its normalisation adds to the variance"),
    (("noise", "jitter"), "the noise that it adds"),
    (("momentum",), "how fast its running statistics follow"),
    (("temperature", "scale", "scaling", "gain", "alpha"), "the scale of what it computes"),
    (("top_k", "expert", "gate", "capacity", "route"), "how it routes"),
)
"""What attributes of modules usually decide, by words in their names."""


def _meaning(name: str) -> str:
    """What an attribute of this name decides, as far as its name tells."""
    if name == "p":
        return "its dropout"
    return next((meaning for words, meaning in MEANINGS if any(word in name.lower() for word in words)), "")


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
        severity="warn" if name.partition("/")[0] in STEERING else "note",
        cause=f"a setting of the model was changed during training: '{name}' of '{module}'"
        + (f", which decides {meaning}" if (meaning := _meaning(name)) else ""),
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
