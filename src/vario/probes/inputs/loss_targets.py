"""Whether what losses compare with changes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import LossTargets as Offered
from vario.backends.protocols.losses import Compared, LossTarget
from vario.core.quantities import GUESS_CLASSES, GUESS_SQUARES, INPUT_CHANGE, INPUT_SINCE, INPUT_WAS, LOSS_MISUSE
from vario.probes import Needs, Recorder
from vario.probes.inputs.input_watch import OF_MADE_NUMBERS, InputWatch

Numbers = npt.NDArray[Any]

MOST_PASSES = 3
"""The backward passes of each step whose targets are looked at: a critic's of real and made rows, and a generator's."""
FIRST_STEPS = 12
"""Steps in which it is told what a model that knows nothing would cost."""
BEYOND, MOST_BEYOND, LOOKS_BEYOND = 0.01, 0.05, 3
"""How far, as a share of the range of the predictions, targets may lie beyond it, how many of them, and how often."""
MOST_IN_VAIN = 20
"""Looks in a row at losses without any target to see before no more are taken."""


class LossTargets:
    """`input_change/target:mean` and so on: a lasting change of what the loss compares with, unless it is an input.

    `loss_misuse/softmax_twice` and the like: what a loss function gets is not what it is made for, told once.
    `guess_classes`, `guess_squares`: in the first steps, what a guess is compared with. Looks at a few elements of the
    targets of torch's criteria, which the graph of the loss holds.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (Offered,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to losses, also those of light steps."""
        offered = needed(backend, Offered)
        self._recorder, self._clock = recorder, backend.clock
        self._watches: dict[str, InputWatch] = {}
        self._step, self._pass, self._num_in_vain = -1, 0, 0
        self._looked = defaultdict[str, int](int)
        self._num_beyond = defaultdict[str, int](int)
        self._misuses: set[str] = set()
        offered.sample_targets(self._may_look, recorder.guarded("loss_targets", self._targets_came))

    def _may_look(self) -> bool:
        step = self._clock.step
        self._pass, self._step = self._pass + 1 if step == self._step else 0, step
        if self._pass >= MOST_PASSES or self._num_in_vain >= MOST_IN_VAIN or not self._recorder.costs.may_look(step):
            return False
        self._num_in_vain += 1
        return True

    def _targets_came(self, compared: Compared) -> None:
        targets, step, self._num_in_vain = compared.targets, self._clock.step, 0
        for name in compared.misuses:
            self._tell_of_misuse(name, 1.0, self._recorder.log)
        suffix = f" (pass {self._pass + 1})" if self._pass else ""

        def fill(scalars: dict[str, float]) -> None:
            for target in targets:
                self._look(step, target, f"{target.name}{suffix}", scalars)

        self._recorder.frames.log_when(self._recorder.guarded("loss_targets", fill))

    def _tell_of_misuse(self, name: str, value: float, log: Callable[..., None]) -> None:
        if name not in self._misuses:
            self._misuses.add(name)
            log(**{LOSS_MISUSE + name: value})

    def _compare_with_limits(
        self, name: str, sample: Numbers, limits: tuple[float, float], scalars: dict[str, float]
    ) -> None:
        low, high = limits
        slack = BEYOND * (high - low)
        is_beyond = (sample < low - slack) | (sample > high + slack)
        self._num_beyond[name] = self._num_beyond[name] + 1 if is_beyond.mean() > MOST_BEYOND else 0
        if self._num_beyond[name] >= LOOKS_BEYOND:
            farthest = float(sample[is_beyond][np.argmax(np.abs(sample[is_beyond] - (low + high) / 2))])
            self._tell_of_misuse(f"beyond_{low:g}_{high:g}", farthest, scalars.update)

    def _look(self, step: int, target: LossTarget, name: str, scalars: dict[str, float]) -> None:
        sample = target.sample().reshape(-1)
        watch = self._watches.get(name)
        if watch is None:
            is_made = not target.num_classes
            watch = self._watches[name] = InputWatch(OF_MADE_NUMBERS if is_made else 1.0)
        if self._looked[name] < FIRST_STEPS and name == "target":
            self._looked[name] += 1
            if target.kind == "classes":
                scalars[GUESS_CLASSES] = float(target.num_classes)
            elif target.kind == "squares" and math.isfinite(square := float(np.mean(np.square(sample, dtype=float)))):
                scalars[GUESS_SQUARES] = square
        if target.limits is not None:
            self._compare_with_limits(name, sample, target.limits, scalars)
        for what, was, now, since in watch.look(step, sample):
            scalars[f"{INPUT_CHANGE}{name}:{what}"] = now
            scalars[f"{INPUT_WAS}{name}:{what}"] = was
            scalars[f"{INPUT_SINCE}{name}:{what}"] = float(since)
