"""PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from vario.backends.protocols.backend import Backend
    from vario.backends.protocols.framework import Found, ModelSearch
    from vario.backends.protocols.msprobe_wishes import MsprobeSide
    from vario.core.selector import Choice


class Torch:
    """PyTorch modules, whichever engine trains them."""

    name: ClassVar[str] = "torch"
    expects: ClassVar[str] = "a torch.nn.Module"
    imported_as: ClassVar[str] = "torch"

    @staticmethod
    def owns(model: Any) -> bool:
        """Whether one of the model's classes comes from torch."""
        return any(cls.__module__.split(".")[0] == "torch" for cls in type(model).__mro__)

    @staticmethod
    def backend(model: Any, optimizer: Any, choice: Choice, scaler: Any, engine: str | None) -> Backend:
        """Return the backend of one or several modules and the optimizers that update them."""
        from vario.backends.torch.model import TorchModel

        return TorchModel(model, optimizer, choice, scaler, engine)

    @staticmethod
    def search(found: Found, is_followed: Callable[[Any], bool], is_busy: Callable[[], bool]) -> ModelSearch:
        """Look for modules in training; torch has been imported."""
        from vario.backends.torch.loop.discovery import Search

        return Search(found, is_followed, is_busy)

    @staticmethod
    def is_watched(model: Any) -> bool:
        """Whether a Monitor already watches this module, or a part of it."""
        from vario.backends.torch.targets import is_watched

        return is_watched(model)

    @staticmethod
    def world_size() -> int:
        """Return the number of ranks, from the process group or the launcher."""
        from vario.backends.torch.process import rank_and_world_size

        return rank_and_world_size()[1]

    @staticmethod
    def msprobe_side() -> MsprobeSide:
        """Return its models as msprobe sees them."""
        from vario.backends.torch.msprobe_side import TorchSide

        return TorchSide()
