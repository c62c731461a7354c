"""How a tensor framework is detected: by its models, and in unchanged scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.losses import BackwardLoss
from vario.core.selector import Choice

Found = Callable[[Mapping[str, Any], int, Sequence[BackwardLoss]], None]
"""Takes models in training: the number of their updates, and the losses of the step that has ended or is about to."""


class Framework(Protocol):
    """One tensor framework, known without importing it."""

    name: ClassVar[str]
    expects: ClassVar[str]
    """What can be watched, in words; empty if it is for what is not watched."""

    @staticmethod
    def owns(model: Any) -> bool:
        """Whether a model belongs to this framework, judged by its classes."""

    @staticmethod
    def backend(model: Any, optimizer: Any, choice: Choice, scaler: Any, engine: str | None) -> Backend:
        """Return the backend that watches this model, or several."""


class ModelSearch(Protocol):
    """Looks for models in training."""

    def begin(self) -> None:
        """Start from scratch: in a process that was forked."""

    def stop(self) -> None:
        """Stop looking."""

    def why_nothing(self) -> str:
        """Return why no model was found so far and what to do, in one sentence."""


class SearchedFramework(Framework, Protocol):
    """A framework whose models `vario run` finds in unchanged scripts."""

    imported_as: ClassVar[str]
    """The module whose import shows that a script may train with it."""

    @staticmethod
    def search(found: Found, is_followed: Callable[[Any], bool], is_busy: Callable[[], bool]) -> ModelSearch:
        """Start looking. `is_followed(optimizer)`: a Monitor counts its updates as steps; `is_busy()`: there is one."""

    @staticmethod
    def is_watched(model: Any) -> bool:
        """Whether a Monitor already watches this model, or a part of it."""

    @staticmethod
    def world_size() -> int:
        """Return how many processes train one model, including this one."""
