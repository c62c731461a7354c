"""No framework: jobs that only log plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from vario.backends.protocols.backend import Backend
    from vario.core.selector import Choice


class WithoutModel:
    """What `vario.start` records: plain numbers, and no model."""

    name: ClassVar[str] = "no_model"
    expects: ClassVar[str] = ""

    @staticmethod
    def owns(model: Any) -> bool:
        """Whether it is what stands for a model there."""
        return any(cls.__module__ == "vario.backends.no_model" for cls in type(model).__mro__)

    @staticmethod
    def backend(model: Any, optimizer: Any, choice: Choice, scaler: Any, engine: str | None) -> Backend:
        """Return the backend that follows nothing."""
        from vario.backends.no_model import NoModelBackend

        return NoModelBackend()
