"""NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from vario.backends.protocols.backend import Backend
    from vario.core.selector import Choice


class NumPy:
    """Training loops written in NumPy, which report their events themselves."""

    name: ClassVar[str] = "numpy"
    expects: ClassVar[str] = "a vario.backends.numpy.NumpyModel"

    @staticmethod
    def owns(model: Any) -> bool:
        """Whether it is a `NumpyModel`."""
        return any(cls.__module__ == "vario.backends.numpy.model" for cls in type(model).__mro__)

    @staticmethod
    def backend(model: Any, optimizer: Any, choice: Choice, scaler: Any, engine: str | None) -> Backend:
        """Return the backend of a model; the loop updates it, so there is no optimizer, scaler or engine to choose."""
        from vario.backends.numpy.backend import NumpyBackend

        return NumpyBackend(model, choice)
