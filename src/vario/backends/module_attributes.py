"""Plain numbers in modules that steer what they compute: eps, momentum, p, scale, top_k, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LEAST_LOOKS = 3
"""What changes within these many looks is a counter or a schedule, not a setting."""
_MOST_CHANGES = 2
"""An attribute that changes more often is one, too."""
_NUMBERS = (bool, int, float)


class ModuleAttributes:
    """Remembers the numbers among the attributes of modules, and says which of them have changed."""

    def __init__(self, modules: Mapping[str, object]) -> None:
        self._tables = [(name, vars(module), keys) for name, module in modules.items() if (keys := _keys(module))]
        self._last = [_read(table, keys) for _, table, keys in self._tables]
        self._changes: dict[str, int] = {}
        self._looks = 0

    def changed(self) -> dict[str, tuple[float, float]]:
        """Return attributes that have changed since the last call, each with its old and its new value."""
        self._looks += 1
        found: dict[str, tuple[float, float]] = {}
        for at, (name, table, keys) in enumerate(self._tables):
            now, last = _read(table, keys), self._last[at]
            if now != last:
                self._last[at] = now
                for key, old, new in zip(keys, last, now, strict=True):
                    if old != new and self._is_setting(f"{name}.{key}", old, new):
                        found[f"{name}.{key}"] = float(old), float(new)
        return found

    def _is_setting(self, name: str, old: Any, new: Any) -> bool:
        self._changes[name] = changes = self._changes.get(name, 0) + 1
        if self._looks <= _LEAST_LOOKS:
            self._changes[name] = _MOST_CHANGES + 1
        is_number = type(old) in _NUMBERS and type(new) in _NUMBERS
        # Nobody sets a width to one more than it was: this counts.
        is_count = is_number and type(new) is int and new - old == 1
        return is_number and not is_count and self._looks > _LEAST_LOOKS and changes <= _MOST_CHANGES


def _keys(module: object) -> tuple[str, ...]:
    return tuple(
        key
        for key, value in vars(module).items()
        if type(value) in _NUMBERS and not key.startswith("_") and key != "training"
    )


def _read(table: Mapping[str, Any], keys: tuple[str, ...]) -> list[Any]:
    return [table.get(key) for key in keys]


def is_causal(attention: object) -> bool:
    """Whether an attention module masks later keys, by its own attributes; the default is yes."""
    for name in ("is_causal", "causal"):
        said = getattr(attention, name, None)
        if isinstance(said, bool):
            return said
    mask_type = getattr(attention, "attn_mask_type", None)
    return mask_type is None or "causal" in str(getattr(mask_type, "name", mask_type)).lower()
