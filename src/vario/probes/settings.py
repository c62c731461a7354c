"""Switches that decide what is trained."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder

MOST_NAMED = 8
"""Modules that are named when they change their mode; of more, only how many."""
MOST_OPTIMIZERS = 16
"""Optimizers that are told apart; in a model whose parameters have one each, the rest count as one."""
LOOK_EVERY = 10
"""Updates between two looks for parameters that are new in the model, which take time in a large one."""


class Settings:
    """`setting/...`: modules in evaluation mode, trainable parameters, optimizer options; logged when they change.

    A module that changes its mode is named (`setting/eval:NAME`), and so is a parameter that came into the model after
    it was watched (`setting/new:NAME`).
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Look at each update."""
        known: dict[str, float] = {}
        optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        num_optimizers = 0
        modes: dict[str, frozenset[str]] = {}
        new: set[str] = set()
        num_updates = 0

        def update_began(optimizer: Any) -> None:
            nonlocal num_updates, num_optimizers
            if optimizer is None:
                return
            if optimizer not in optimizers:
                # One that is made anew in every step does not get a number each time.
                optimizers[optimizer] = min(num_optimizers, MOST_OPTIMIZERS)
                num_optimizers += 1
            number = optimizers[optimizer]
            where = f"setting/{number}/" if number else "setting/"
            found = {where + name: value for name, value in watched.targets.settings(optimizer).items()}
            changed = {name: value for name, value in found.items() if known.get(name) != value}
            known.update(changed)
            if f"{where}modules_in_eval" in changed:
                changed.update(mode_changes())
            if num_updates % LOOK_EVERY == 0:
                changed.update(new_parameters())
            num_updates += 1
            if changed:
                recorder.log(**changed)

        def new_parameters() -> dict[str, float]:
            found = [name for name in watched.targets.unknown_parameters() if name not in new]
            new.update(found)
            # What came between watching and the first update, as adapters do, is part of how the training was set up.
            return {f"setting/new:{name}": 1.0 for name in found[:MOST_NAMED]} if num_updates else {}

        def mode_changes() -> dict[str, float]:
            now = frozenset(watched.targets.modules_in_eval())
            before = modes.get("eval")
            modes["eval"] = now
            flipped = sorted(now ^ before) if before is not None else []
            return {f"setting/eval:{name}": float(name in now) for name in flipped if len(flipped) <= MOST_NAMED}

        # Not when it is called: with a closure the pass, and `model.train()` before it, are still to come.
        watched.on_update_began(recorder.guarded("settings", update_began))
