"""Names of quantities and targets in earlier versions, which old configs and old runs still use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vario.core.run_format import LIVE

QUANTITIES = {"stray": "unexpected_change"}
"""Old name of a quantity to the current one."""

TARGET_ENDS = {
    "update": (":surprise", ":grad_vs_second_moment"),
    "scalar": ("interval/stray", "interval/unexpected_change"),
}
"""By quantity: old endings of some targets, and the current ones."""


def new_target(quantity: str, target: str) -> str:
    """Return the current name of a target."""
    old, new = TARGET_ENDS.get(quantity, ("", ""))
    return target.removesuffix(old) + new if old and target.endswith(old) else target


def old_target(quantity: str, target: str) -> str | None:
    """Return the old name of a target; None if it never changed."""
    old, new = TARGET_ENDS.get(quantity, ("", ""))
    return target.removesuffix(new) + old if new and target.endswith(new) else None


def stored_names(quantity: str) -> list[str]:
    """Return the names a quantity may have in the files of a run."""
    return [quantity, *(old for old, new in QUANTITIES.items() if new == quantity)]


def stored_name(rank_folder: Path, quantity: str) -> str:
    """Return the name of a quantity in the files of a rank: a run that began with the old name keeps it."""
    for old in stored_names(quantity)[1:]:
        if any(os.path.lexists(rank_folder / name) for name in (old, f"{old}{LIVE}")):
            return old
    return quantity


def new_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run with the current names of quantities."""
    new = dict(options)
    if isinstance(quantities := new.get("quantities"), (list, tuple)):
        new["quantities"] = [QUANTITIES.get(name, name) if isinstance(name, str) else name for name in quantities]
    if isinstance(every := new.get("every"), Mapping):
        new["every"] = {QUANTITIES.get(name, name): interval for name, interval in every.items()}
    return new
