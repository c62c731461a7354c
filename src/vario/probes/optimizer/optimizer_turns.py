"""Whether every optimizer of a loop still takes its turn."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import Losses
from vario.core.quantities import OPTIMIZER_IDLE
from vario.probes import Needs, Recorder

KNOWN = 40
"""Updates after which an optimizer is known."""
LATE, LEAST_LATE = 4, 16
"""How many times its longest pause, and how many steps, an optimizer must have made no update."""


@dataclass
class _Turns:
    first: int
    last: int
    longest: int = 1
    num: int = 0
    is_told: bool = False
    part: str = ""

    def update(self, step: int) -> None:
        self.longest = max(self.longest, step - self.last)
        self.num += step > self.last
        self.last = step

    def is_late(self, step: int) -> bool:
        return self.num >= KNOWN and step - self.last > max(LATE * self.longest, LEAST_LATE)


class OptimizerTurns:
    """`optimizer_idle/PART`: the last step in which the optimizer of this part made an update, once it is overdue.

    Only in loops with several optimizers, of which another goes on as before.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (Losses,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to updates."""
        self._losses, self._recorder, self._clock = needed(backend, Losses), recorder, backend.clock
        self._turns: weakref.WeakKeyDictionary[Any, _Turns] = weakref.WeakKeyDictionary()
        # Light steps have one optimizer.
        backend.on_update_called(recorder.guarded("optimizer_turns", self._update_called))

    def _update_called(self, optimizer: Any) -> None:
        if optimizer is None:
            return
        step, turns = self._clock.step, self._turns.get(optimizer)
        if turns is None:
            turns = self._turns[optimizer] = _Turns(step, step)
        turns.update(step)
        if len(self._turns) < 2:
            return
        if not turns.part:
            turns.part = self._losses.part_updated_by([optimizer])
        for other in list(self._turns.values()):
            if other.part and not other.is_told and other.is_late(step):
                other.is_told = True
                # One that began since then has taken over.
                if turns.num >= KNOWN and turns.first < other.last:
                    self._recorder.log(**{OPTIMIZER_IDLE + other.part: float(other.last)})
