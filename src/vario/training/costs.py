"""What vario costs the training thread, measured per part during training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from threading import get_ident
from time import perf_counter
from typing import Any

from vario.core.errors import TrainingStop

IN_SHORT_STEPS, LOOK_AT, OUT_OF = 8, (0, 4), 9
"""Where steps are so short that sparse parts run in fewer than one in eight, cheap looks are taken in two of nine. They
are unevenly apart: a few batches that come in the same order in each epoch are not met at the same place each time."""
ALL_BEFORE = 64
"""The step before which every look is taken: by then what is looked at is known."""

FULL_BEFORE = 16
"""The step before which sparse parts are not skipped: a start is judged by them."""
SPARSE = frozenset({"batches", "device_memory", "unzeroed_gradients", "pass_time", "settings", "micro_norms"})
"""Parts that can be skipped in steps that are too short for them."""
_NONE: frozenset[str] = frozenset()


def is_sparse(call: Callable[..., None]) -> bool:
    """Whether a guarded call belongs to a part that can be skipped."""
    return getattr(call, "is_sparse", False)


class Costs:
    """Seconds the training thread spends in each part. Time in a nested part counts for that part only."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        """Seconds since the step began, by part."""
        self.writer: int | None = None
        """The writer thread, whose time does not count."""
        self.every = 1
        """Sparse parts run in two consecutive steps out of this many: some compare a step with the previous one."""
        self.full_before = FULL_BEFORE
        """The step before which nothing is skipped: one of the first, or something has been found."""
        self._idle = _NONE
        self.inside_seconds = 0.0
        """Seconds of the training thread in all parts so far."""

    def begin_step(self, step: int) -> None:
        """Start a step: choose the parts to skip in it."""
        self._idle = SPARSE if step % self.every > 1 and step >= self.full_before else _NONE

    @property
    def is_sparse_step(self) -> bool:
        """Whether sparse parts are skipped in this step."""
        return bool(self._idle)

    def may_look(self, step: int) -> bool:
        """Whether a cheap look, which is for every step unless steps are very short, is due in this step."""
        return self.every <= IN_SHORT_STEPS or step < ALL_BEFORE or step % OUT_OF in LOOK_AT

    def guarded(
        self, part: str, call: Callable[..., None], off: Collection[str], failed: Callable[[str, Exception], None]
    ) -> Callable[..., None]:
        """Return the same call, which counts its time for a part and reports a failure instead of raising."""
        spent = self.spent

        def run(*args: Any) -> None:
            if part in off:
                return
            is_training = get_ident() != self.writer
            if is_training and part in self._idle:
                return
            began, inside = perf_counter(), self.inside_seconds
            try:
                call(*args)
            except TrainingStop:
                raise
            except Exception as error:  # noqa: BLE001 - the failure policy
                failed(part, error)
            if is_training:
                took = perf_counter() - began
                spent[part] += took - (self.inside_seconds - inside)
                self.inside_seconds = inside + took

        run.__dict__["is_sparse"] = part in SPARSE
        return run

    def add(self, part: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere to a part."""
        self.spent[part] += seconds
        self.inside_seconds += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, by part."""
        taken = dict(self.spent)
        self.spent.clear()
        return taken
