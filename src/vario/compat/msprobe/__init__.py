"""A drop-in replacement for msprobe's Monitor: the same calls, JSON config and files, based on vario.

::

    from vario.compat.msprobe import TrainerMon

Names are resolved on first use, so converting files imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vario.compat.msprobe.to_sqlite import CSV2DBConfig, csv2db
    from vario.compat.msprobe.to_tensorboard import csv2tensorboard_by_step
    from vario.compat.msprobe.trainer_mon import TrainerMon

_HOMES = {
    "TrainerMon": "trainer_mon",
    "csv2tensorboard_by_step": "to_tensorboard",
    "csv2db": "to_sqlite",
    "CSV2DBConfig": "to_sqlite",
}

__all__ = ["CSV2DBConfig", "TrainerMon", "csv2db", "csv2tensorboard_by_step"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vario.compat.msprobe' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
