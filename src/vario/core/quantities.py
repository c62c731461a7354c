"""What can be watched: every quantity that a probe declares.

The list is the folder `probes/` and the entry points beside it. It is read on first use, and by name, so that the core
knows what exists without importing it.
"""

from __future__ import annotations

import re
from typing import Any

from vario.core.registry import Registry
from vario.core.run_format import ROLLUPS, SNAPSHOTS

SCALAR = "scalar"
"""Plain numbers: what you log, step time, memory. They are always kept."""

LOSS, LOSS_LOCAL, LOSS_BACKWARD = LOSSES = "loss", "loss_local", "loss_backward"
"""Plain numbers that are the loss: as somebody logs it, as the model returns it, as backward is called on it."""


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = (ROLLUPS, SNAPSHOTS)
"""Folders beside those of quantities."""


def is_quantity(name: str) -> bool:
    """Whether a quantity can have this name, which becomes that of folders, of files and of views in SQL."""
    return _NAME.fullmatch(name) is not None and name not in _RESERVED


def _probe_name(part: object) -> str | None:
    quantity = getattr(part, "quantity", None)
    if not isinstance(part, type) or not isinstance(quantity, str) or not hasattr(part, "attach"):
        return None
    if not is_quantity(quantity):
        raise TypeError(f"a quantity cannot be called {quantity!r}: letters, digits and _ only, 64 at most")
    return f"{quantity}:{part.__name__}" if quantity == SCALAR else quantity


PROBES: Registry[Any] = Registry("quantities", "vario.probes", _probe_name)
"""Probes by quantity; those of plain numbers as `scalar:<class>`."""


def watchable() -> list[str]:
    """All quantities a Monitor can be asked for."""
    return [found.name for found in PROBES if found.part.quantity != SCALAR]


def default_every(quantity: str) -> int:
    """How often a quantity is watched unless said otherwise: cheap ones each step, dear ones rarer."""
    return int(getattr(PROBES.get(quantity, "every"), "every", 1))
