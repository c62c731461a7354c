"""Compatibility with other tools: their configs, files and calls. Nothing outside this folder uses their terms."""

from __future__ import annotations

import importlib
from types import ModuleType

_TOOLS = ("mindformers", "msprobe")


def __getattr__(name: str) -> ModuleType:
    if name not in _TOOLS:
        raise AttributeError(f"module 'vario.compat' has no attribute '{name}'")
    return importlib.import_module(f"{__name__}.{name}")
