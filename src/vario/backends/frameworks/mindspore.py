"""MindSpore."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from vario.backends.protocols.backend import Backend
    from vario.backends.protocols.framework import Found, ModelSearch
    from vario.backends.protocols.msprobe_wishes import MsprobeSide
    from vario.core.selector import Choice


class MindSpore:
    """MindSpore cells, in PyNative mode and in graph mode."""

    name: ClassVar[str] = "mindspore"
    expects: ClassVar[str] = "a mindspore.nn.Cell"
    imported_as: ClassVar[str] = "mindspore"

    @staticmethod
    def owns(model: Any) -> bool:
        """Whether one of the model's classes comes from MindSpore."""
        return any(cls.__module__.split(".")[0] == "mindspore" for cls in type(model).__mro__)

    @staticmethod
    def backend(model: Any, optimizer: Any, choice: Choice, scaler: Any, engine: str | None) -> Backend:
        """Return the backend of one or several cells and the optimizers that update them."""
        from vario.backends.mindspore.model import mindspore_model

        return mindspore_model(model, optimizer, choice, scaler, engine)

    @staticmethod
    def search(found: Found, is_followed: Callable[[Any], bool], is_busy: Callable[[], bool]) -> ModelSearch:
        """Look for cells in training; MindSpore has been imported."""
        from vario.backends.mindspore.discovery import Search

        return Search(found, is_followed)

    @staticmethod
    def is_watched(model: Any) -> bool:
        """Whether a Monitor already watches this cell, or a part of it."""
        from vario.backends.mindspore.targets import is_watched

        return is_watched(model)

    @staticmethod
    def world_size() -> int:
        """Return the number of ranks, from MindSpore's communication or the launcher."""
        from vario.backends.mindspore.process import rank_and_world_size

        return rank_and_world_size()[1]

    @staticmethod
    def msprobe_side() -> MsprobeSide:
        """Return its models as msprobe sees them."""
        from vario.backends.mindspore.msprobe_side import MindSporeSide

        return MindSporeSide()
