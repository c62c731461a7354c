"""What a loss was computed by, as a probe gets it: its operations and the plain numbers in them, no tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

INPUTS = "inputs_with_gradient"
"""The name of how many inputs of an operation get a gradient, beside the plain numbers it was called with."""


class Constant(NamedTuple):
    """A plain number that an operation was called with."""

    operation: int
    """Which of the operations."""
    name: str
    """Its argument; `factor` for a number that a tensor is multiplied with or divided by."""
    value: float


class LossGraph(NamedTuple):
    """The differentiable operations behind a loss, in the order in which they ran."""

    operations: tuple[str, ...]
    parameters: tuple[str, ...]
    """The watched parameter that each of them has for an input; empty for most."""
    constants: tuple[Constant, ...]
    seconds: float
    """What reading it took."""


class LossGraphs(Protocol):
    """The operations that a loss was computed by."""

    def read_loss_graphs(self, may_read: Callable[[], bool], call: Callable[[LossGraph], None]) -> None:
        """Call `call` with the graph of each loss at the start of whose backward pass `may_read()` is true."""
