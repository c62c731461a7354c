"""The gradients that a backend provides at the end of a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vario.backends.protocols.observing import NamedTensors, Tensor

Values = npt.NDArray[np.float64]


class Gradients(Protocol):
    """Gradients after a backward pass: accumulated, reduced over ranks, not yet clipped.

    They may be read only during the call that provides them.
    """

    @property
    def scale(self) -> Tensor | None:
        """The scale they still have."""

    def named(self, replicas: bool = False) -> NamedTensors:
        """Return names and gradients of the chosen parameters, in the order in which backward reached them.

        With `replicas` also those of parameters that another rank records.
        """

    def in_any_order(self) -> NamedTensors:
        """Return the same, faster if possible."""

    def norm(self) -> float | None:
        """Return the norm of all of them, recorded or not, if they are on the host; None if they are on a device."""

    def norm_later(self) -> Callable[[], float] | None:
        """Start computing the norm of all of them wherever they are; the result may wait. None if that is not known."""

    def norms(self, most: int) -> tuple[Sequence[str], Values] | None:
        """Return the norm of each, zero where there is none, if they are on the host and there are no more than that.

        None if they are not. The names are the same list as long as the parameters are the same.
        """


@dataclass(frozen=True)
class PushedGradients:
    """Gradients that a backend already has, by name."""

    names: list[str]
    tensors: list[Tensor]
    scale: Tensor | None = None

    def named(self, replicas: bool = False) -> NamedTensors:
        """Return all of them."""
        return self.names, self.tensors

    def in_any_order(self) -> NamedTensors:
        """Return all of them."""
        return self.names, self.tensors

    def norm(self) -> float | None:
        """Return None: their rows give the norm."""
        return None

    def norm_later(self) -> Callable[[], float] | None:
        """Return None, likewise."""
        return None

    def norms(self, most: int) -> tuple[Sequence[str], Values] | None:
        """Return None, likewise."""
        return None
