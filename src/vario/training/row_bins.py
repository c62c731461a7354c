"""The distributions of the rows of the step in progress, in steps that record them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from vario.backends.protocols.capabilities import Distributions
from vario.backends.protocols.observing import Tensor
from vario.core.elements.bins import COUNTED, QUANTITY, BinTable

_NONE: frozenset[str] = frozenset()


class RowBins:
    """Counts the elements of tensors that get a row, where the quantity is one of those with distributions."""

    def __init__(self) -> None:
        self.counter: Distributions | None = None
        """What counts; None if distributions are not recorded."""
        self.failed: Callable[[Exception], None] | None = None
        """Called with what was raised: no distributions from then on."""
        self.seconds = 0.0
        """Seconds spent here; whoever charges them to a part resets them to 0."""
        self._counted = _NONE
        self._has_any = False

    def begin_step(self, watched: frozenset[str]) -> None:
        """Start a step that records these quantities."""
        self._counted = watched.intersection(COUNTED) if self.counter is not None and QUANTITY in watched else _NONE

    def counts(self, quantity: str) -> bool:
        """Whether this step records distributions of a quantity."""
        return quantity in self._counted

    def count(
        self, quantity: str, rows: Sequence[int | None], tensors: Sequence[Tensor], scale: Tensor | None = None
    ) -> None:
        """Count the elements of tensors, divided by `scale`, as those of these rows. Never raises."""
        if quantity not in self._counted or self.counter is None:
            return
        began = perf_counter()
        try:
            self.counter.count_rows(rows, tensors, scale)
            self._has_any = True
        except Exception as error:  # noqa: BLE001 - the failure policy: the rows stay, without distributions
            self._counted = _NONE
            if self.failed is not None:
                self.failed(error)
        self.seconds += perf_counter() - began

    def take_device_seconds(self) -> dict[str, float]:
        """Return the estimated device seconds since the last call, by quantity."""
        if self.counter is None or not self.counter.device_seconds:
            return {}
        taken, self.counter.device_seconds = self.counter.device_seconds, 0.0
        return {QUANTITY: taken}

    def collect(self) -> Callable[[], BinTable] | None:
        """End the step; return a function that waits for its distributions; None if there are none."""
        if self.counter is None or not self._has_any:
            return None
        self._has_any = False
        fetch = self.counter.collect_rows()

        def fetched() -> BinTable:
            try:
                return fetch()
            except Exception as error:  # noqa: BLE001 - the failure policy
                if self.failed is not None:
                    self.failed(error)
                return BinTable({})

        return fetched
