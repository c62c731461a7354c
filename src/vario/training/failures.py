"""The failure policy: a part that fails is logged once, switched off and listed in the run. `strict=True` raises."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from vario.backends.protocols.events import TRAINING_LOOP
from vario.sinks import PartsOff
from vario.training.observer import QuantityObserver

log = logging.getLogger("vario")


class Failures:
    """What failed in a Monitor so far."""

    def __init__(self, is_strict: bool, observers: Iterable[QuantityObserver], left_out: PartsOff) -> None:
        self.parts_off = left_out
        """As the run lists them."""
        self.are_new = bool(left_out)
        """Whether the sinks do not know of some yet."""
        self.off: set[str] = set()
        """Names of the parts that are switched off."""
        self._is_strict = is_strict
        self._observers = observers
        self._of_writer: Exception | None = None

    def switch_off(self, part: str, error: Exception, rank: int, step: int, raises: bool) -> None:
        """Log a failed part once and go on without it; with `strict`, raise now or at the next step."""
        if self._is_strict:
            if raises:
                raise error
            self._of_writer = self._of_writer or error
            self.off.add(part)
            return
        if part in self.off:
            return
        self.off.add(part)
        for observer in self._observers:
            observer.watching = observer.watching and observer.quantity not in self.off and part != TRAINING_LOOP
        text = f"{type(error).__name__}: {error}"
        self.parts_off.append({"part": part, "step": step, "error": text})
        log.warning("rank %d, step %d: '%s' failed and is switched off; training continues. %s", rank, step, part, text)
        self.are_new = True

    def dropped(self, step: int, num_dropped: int) -> None:
        """Note that a step was dropped; the first one is logged."""
        self.are_new = True
        if num_dropped == 1:
            log.warning("step %d dropped: the writer can't keep up", step)

    def raise_what_the_writer_met(self) -> None:
        """Raise, on the training thread, what failed on the writer's."""
        error, self._of_writer = self._of_writer, None
        if error is not None:
            raise error
