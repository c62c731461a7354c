"""Which framework a model belongs to."""

from __future__ import annotations

from typing import Any

from vario.backends.base import Watched
from vario.core.errors import ModelError
from vario.core.selector import Choice


def find_backend(model: Any, optimizer: Any, choice: Choice, scaler: Any, engine: str | None) -> Watched:
    """The model in the hands of its framework's backend."""
    first = (
        next(iter(model.values() if isinstance(model, dict) else model), None)
        if isinstance(model, (dict, list, tuple))
        else model
    )
    if any(cls.__module__.split(".")[0] == "torch" for cls in type(first).__mro__):
        from vario.backends.torch.model import TorchModel

        return TorchModel(model, optimizer, choice, scaler, engine)
    raise ModelError(f"watch: expected a torch.nn.Module, got {type(model).__name__}")
