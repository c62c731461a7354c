"""The monitors of MindSpore Transformers, based on vario: the same YAML blocks, tags and callbacks.

::

    from vario.compat.mindformers import load_yaml

Names are resolved on first use, so importing this imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vario.compat.mindformers.callbacks import callbacks_from, watch
    from vario.compat.mindformers.expert_monitor import TopkBiasBalanceCallback
    from vario.compat.mindformers.health import CheckpointHealth
    from vario.compat.mindformers.loading import MindformersConfig, load_yaml
    from vario.compat.mindformers.loss_monitor import MFLossMonitor
    from vario.compat.mindformers.state_monitor import TrainingStateMonitor
    from vario.compat.mindformers.whole import write_whole

_HOMES = {
    "MFLossMonitor": "loss_monitor",
    "TopkBiasBalanceCallback": "expert_monitor",
    "TrainingStateMonitor": "state_monitor",
    "callbacks_from": "callbacks",
    "watch": "callbacks",
    "write_whole": "whole",
    "CheckpointHealth": "health",
    "load_yaml": "loading",
    "MindformersConfig": "loading",
}

__all__ = [
    "CheckpointHealth",
    "MFLossMonitor",
    "MindformersConfig",
    "TopkBiasBalanceCallback",
    "TrainingStateMonitor",
    "callbacks_from",
    "load_yaml",
    "watch",
    "write_whole",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vario.compat.mindformers' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
