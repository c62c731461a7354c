"""The tensor frameworks that vario knows, one module each. None of them is imported here.

A module in this folder adds a framework by defining a class with a `name`, `owns` and `backend`
(`vario.backends.protocols.framework`); other packages use the entry point group `vario.backends.frameworks`.
"""

from __future__ import annotations

from vario.backends.protocols.framework import Framework
from vario.core.registry import Registry


def _framework_name(part: object) -> str | None:
    name = getattr(part, "name", None)
    is_framework = isinstance(part, type) and hasattr(part, "owns") and hasattr(part, "backend")
    return name if is_framework and isinstance(name, str) else None


FRAMEWORKS: Registry[type[Framework]] = Registry("frameworks", __name__, _framework_name)
