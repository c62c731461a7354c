"""Watch a deep-learning training run from the inside: a few numbers per tensor and step, kept in a run folder.

Names are resolved on first use, so that importing vario imports no framework, no pyarrow and no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vario.config import Config
    from vario.errors import ConfigError, ModelError, RunError, VarioError
    from vario.monitor import Monitor, watch
    from vario.records import Frame
    from vario.runs.onset import first_bad
    from vario.runs.run import Run, Series, list_runs, open_run

    __version__: str

_HOMES = {
    "watch": "vario.monitor",
    "Monitor": "vario.monitor",
    "open_run": "vario.runs.run",
    "list_runs": "vario.runs.run",
    "Run": "vario.runs.run",
    "Series": "vario.runs.run",
    "first_bad": "vario.runs.onset",
    "Config": "vario.config",
    "Frame": "vario.records",
    "VarioError": "vario.errors",
    "ConfigError": "vario.errors",
    "ModelError": "vario.errors",
    "RunError": "vario.errors",
}
"""Each public name and the module it lives in."""

__all__ = [
    "Config",
    "ConfigError",
    "Frame",
    "ModelError",
    "Monitor",
    "Run",
    "RunError",
    "Series",
    "VarioError",
    "__version__",
    "first_bad",
    "list_runs",
    "open_run",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("vario")
    elif name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'vario' has no attribute '{name}'")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
