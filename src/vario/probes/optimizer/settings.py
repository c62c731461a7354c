"""Settings that decide what is trained."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import TrainingSettings
from vario.probes import Needs, Recorder

MOST_NAMED = 8
"""The most modules listed by name when they change their mode; beyond that, only their number."""
MOST_OPTIMIZERS = 16
"""The most optimizers listed separately; in a model with one per parameter, the rest count as one."""
LOOK_EVERY = 10
"""Updates between two checks for new parameters, which take time in a large model."""
FIRST_STEPS = 12
"""Steps after which all optimizers of a loop are known."""
MOST_LEFT_OUT = 0.5
"""If more than this share of the parameters are in no optimizer, and what is in one is a single part of the model, such
as a new head, that is meant."""
LEAST_WITHOUT = 0.1
"""The least share of an optimizer's parameters without a gradient that is worth telling: heads may be unused."""
LEAST_CHANGE = 0.1
"""The relative change of a scheduled option, such as momentum, that is logged."""


class Settings:
    """`setting/...`: modules in eval mode, trainable parameters, optimizer options; logged when they change.

    A module that changes its mode is listed by name (`setting/eval:NAME`), and so is a parameter added to the model
    after `vario.watch` (`setting/new:NAME`) and a number of a module that changed (`setting/attribute:NAME.eps`, with
    its old value in `setting/was:NAME.eps`). `setting/frozen:NAME`: a parameter that stopped requiring a gradient.
    `setting/left_out:NAME`: one that gets gradients and is in no optimizer, logged once after the first updates, and
    `setting/no_gradient:NAME`: one in an optimizer that has had no gradient so far, with the share of such parameters.
    `setting/since`: the first step in which what changed may have changed.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (TrainingSettings,)

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._num_optimizers = 0
        self._in_eval: frozenset[str] | None = None
        self._new: set[str] = set()
        self._num_looks = 0
        self._next_step = 0
        self._has_looked_for_others = False
        self._trained: frozenset[str] | None = None
        self._without: weakref.WeakKeyDictionary[Any, tuple[frozenset[str], int]] = weakref.WeakKeyDictionary()
        """Of each optimizer, the parameters that have had no gradient in any look, and how many it has."""

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Check the settings at each update: an optimizer's options always, the model's if there is time."""
        self._switches = needed(backend, TrainingSettings)
        self._recorder, self._clock = recorder, backend.clock
        # Not when the update is called: with a closure the pass, and `model.train()` before it, are still to come.
        backend.on_update_began(recorder.guarded("optimizer_settings", self._look_at_optimizer), even_light=True)
        backend.on_update_began(recorder.guarded("settings", self._look_at_model))

    def _look_at_optimizer(self, optimizer: Any) -> None:
        if optimizer is None:
            return
        if optimizer not in self._optimizers:
            # An optimizer that is created again in every step does not get a new number each time.
            self._optimizers[optimizer] = min(self._num_optimizers, MOST_OPTIMIZERS)
            self._recorder.params.optimizer_came(optimizer, self._num_optimizers)
            self._num_optimizers += 1
        number = self._optimizers[optimizer]
        where = f"setting/{number}/" if number else "setting/"
        found = self._switches.optimizer_settings(optimizer)
        changed = {where + name: value for name, value in found.items() if self._is_news(where + name, value)}
        if changed:
            self._known.update(changed)
            self._recorder.log(**changed)

    def _is_news(self, name: str, value: float) -> bool:
        last = self._known.get(name)
        if last is None or last == value or name.endswith("parameters_in_optimizer"):
            return last != value
        # A schedule changes an option a little in every step. Of momentum, what is left to 1 counts.
        if "beta" in name or "momentum" in name:
            last, value = 1 - last, 1 - value
        return abs(value - last) > LEAST_CHANGE * min(abs(last), abs(value))

    def _look_at_model(self, optimizer: Any) -> None:
        if optimizer is None:
            return
        found = {f"setting/{name}": value for name, value in self._switches.settings().items()}
        changed = {name: value for name, value in found.items() if self._known.get(name) != value}
        self._known.update(changed)
        if "setting/modules_in_eval" in changed:
            changed.update(self._mode_changes())
        if "setting/trainable_parameters" in changed:
            changed.update(self._frozen())
        if not self._has_looked_for_others:
            self._look_for_gradients(optimizer)
            if self._clock.step >= FIRST_STEPS:
                self._has_looked_for_others = True
                changed.update(self._left_out())
                changed.update(self._without_gradient())
        if self._num_looks % LOOK_EVERY == 0:
            changed.update(self._new_parameters())
        for name, (old, new) in list(self._switches.changed_attributes().items())[:MOST_NAMED]:
            changed[f"setting/was:{name}"] = old
            changed[f"setting/attribute:{name}"] = new
        self._num_looks += 1
        step = self._clock.step
        if changed:
            if self._next_step < step:  # where steps are short this is not called in each of them
                changed["setting/since"] = float(self._next_step)
            self._recorder.log(**changed)
        self._next_step = step + 1

    def _new_parameters(self) -> dict[str, float]:
        found = [name for name in self._switches.unknown_parameters() if name not in self._new]
        self._new.update(found)
        # Parameters added before the first update, such as adapters, are part of the setup.
        return {f"setting/new:{name}": 1.0 for name in found[:MOST_NAMED]} if self._num_looks else {}

    def _left_out(self) -> dict[str, float]:
        names = self._switches.left_out(list(self._optimizers))
        if len(names) > MOST_LEFT_OUT * self._known["setting/trainable_parameters"]:
            trained = self._switches.trained_parameters()
            if _common_depth(sorted(set(trained) - set(names))) > _common_depth(trained):
                return {}
        return {f"setting/left_out:{name}": float(len(names)) for name in names[:MOST_NAMED]}

    def _look_for_gradients(self, optimizer: Any) -> None:
        names, num = self._switches.without_gradient(optimizer)
        before, _ = self._without.get(optimizer, (frozenset(names), num))
        self._without[optimizer] = before & frozenset(names), num

    def _without_gradient(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for names, num in self._without.values():
            # If none of them has one, gradients are kept elsewhere.
            if LEAST_WITHOUT * num <= len(names) < num:
                found |= {f"setting/no_gradient:{name}": len(names) / num for name in sorted(names)[:MOST_NAMED]}
        return found

    def _frozen(self) -> dict[str, float]:
        now, before = frozenset(self._switches.trained_parameters()), self._trained
        self._trained = now
        lost = sorted(before - now) if before is not None else []
        return {f"setting/frozen:{name}": 1.0 for name in lost if len(lost) <= MOST_NAMED}

    def _mode_changes(self) -> dict[str, float]:
        now, before = frozenset(self._switches.modules_in_eval()), self._in_eval
        self._in_eval = now
        flipped = sorted(now ^ before) if before is not None else []
        return {f"setting/eval:{name}": float(name in now) for name in flipped if len(flipped) <= MOST_NAMED}


def _common_depth(names: Sequence[str]) -> int:
    """How many parts of their modules' names all of these parameters share."""
    if not names:
        return 0
    parts = [name.split(".")[:-1] for name in (min(names), max(names))]
    return next((at for at, (one, other) in enumerate(zip(*parts, strict=False)) if one != other), min(map(len, parts)))
