"""Engines: where a distributed runtime keeps gradients, weights and optimizer state.

A module in this folder adds an engine by defining a class with a `name` and a `fits`. The first engine that fits the
model and its optimizers is used, in the order of `precedence`, highest first; `plain` fits everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vario.backends.torch.engines.base import Engine
from vario.core.errors import ConfigError
from vario.core.registry import Registry
from vario.core.text import unknown


def _engine_name(part: object) -> str | None:
    return getattr(part, "name", None) if isinstance(part, type) and issubclass(part, Engine) else None


ENGINES: Registry[type[Engine]] = Registry("engines", __name__, _engine_name)


def find_engine(
    roots: Mapping[str, torch.nn.Module], optimizers: Sequence[Any], choice: str | None = None
) -> type[Engine]:
    """Return the engine that trains these models, detected from them or chosen by name."""
    if choice is not None:
        if choice not in ENGINES:
            raise ConfigError(unknown("engine", choice, ENGINES.names()))
        return ENGINES.get(choice)
    by_precedence = sorted((found.part for found in ENGINES), key=lambda engine: -engine.precedence)
    return next(engine for engine in by_precedence if engine.fits(roots, optimizers))
