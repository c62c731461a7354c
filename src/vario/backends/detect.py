"""Find the framework of a model."""

from __future__ import annotations

from typing import Any

from vario.backends.frameworks import FRAMEWORKS
from vario.backends.protocols.backend import Backend
from vario.core.errors import ModelError
from vario.core.selector import Choice


def find_backend(model: Any, optimizer: Any, choice: Choice, scaler: Any, engine: str | None) -> Backend:
    """Return the backend that watches this model."""
    models = model.values() if isinstance(model, dict) else model if isinstance(model, (list, tuple)) else [model]
    first = next(iter(models), None)
    for framework in FRAMEWORKS:
        if framework.part.owns(first):
            return framework.part.backend(model, optimizer, choice, scaler, engine)
    expected = " or ".join(sorted(filter(None, (framework.part.expects for framework in FRAMEWORKS))))
    raise ModelError(f"watch: expected {expected}, got {type(model).__name__}. Without a model, use vario.start.")
