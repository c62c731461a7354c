"""How the elements of tensors are distributed over powers of two."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import Distributions
from vario.core.elements.bins import QUANTITY
from vario.probes import Needs, Recorder


class DistributionRows:
    """Counts by sign and power of two, beside the Summaries of gradients, weights, moments, activations and updates.

    What a lower precision would lose is known from them exactly.
    """

    quantity: ClassVar[str] = QUANTITY
    every: ClassVar[int] = 50
    needs: ClassVar[Needs] = (Distributions,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Let the rows of other quantities be counted in the steps of this one's schedule."""
        observer, bins = recorder.observer(self.quantity), recorder.frames.bins
        bins.counter, bins.failed = needed(backend, Distributions), observer.failed
