"""Probes: each attaches to a watched model and yields the tensors of the quantity it declares.

A module in this folder adds a probe by defining a class with a `quantity` and an `attach`. Probes never import a
framework: the watched model knows where its tensors are (`vario.backends.base.Watched`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from vario.backends.base import Observer, Watched
from vario.registry import Registry


class Recorder(Protocol):
    """What a probe gets from the Monitor."""

    def observer(self, quantity: str, scale: Callable[[], Any] | None = None) -> Observer:
        """A quantity's way into the step in progress; what it sees is divided by `scale()`."""

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """The same call, which switches the part off instead of raising."""

    def log(self, **values: Any) -> None:
        """Keep plain numbers of this step."""

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """Call with the step's duration in seconds before the step is handed over."""


class Probe(Protocol):
    """Yields one quantity."""

    quantity: ClassVar[str]

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the watched model's events."""


def _probe_name(part: object) -> str | None:
    quantity = getattr(part, "quantity", None)
    if not isinstance(part, type) or not isinstance(quantity, str) or not hasattr(part, "attach"):
        return None
    return f"{quantity}:{part.__name__}" if quantity == "scalar" else quantity


PROBES: Registry[type[Probe]] = Registry("probes", __name__, _probe_name)
"""Probes by quantity; those of plain numbers, which are always on, as `scalar:<class>`."""
