"""The gradients that a backend provides at the end of a backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vario.backends.protocols.observing import NamedTensors, Tensor


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
