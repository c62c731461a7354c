"""Plain numbers in modules that steer what they compute: eps, momentum, p, scale, top_k, ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LEAST_LOOKS = 3
"""What changes within these many looks is a counter or a schedule, not a setting."""
_MOST_CHANGES = 2
"""An attribute that changes more often is one, too."""
_MOST_IN_TABLE = 8
_NUMBERS = (bool, int, float)


class ModuleAttributes:
    """Remembers the numbers among the attributes of modules, and says which of them have changed."""

    def __init__(self, modules: Mapping[str, object]) -> None:
        self._tables = [found for name, module in modules.items() for found in _tables(name, vars(module))]
        self._last = [_read(table, keys) for _, table, keys in self._tables]
        self._changes: dict[str, int] = {}
        self._looks = 0

    def changed(self) -> dict[str, tuple[float, float]]:
        """Return attributes that have changed since the last call, each with its old and its new value."""
        self._looks += 1
        found: dict[str, tuple[float, float]] = {}
        for at, (opening, table, keys) in enumerate(self._tables):
            now, last = _read(table, keys), self._last[at]
            if now != last:
                self._last[at] = now
                for key, old, new in zip(keys, last, now, strict=True):
                    if old != new and self._is_setting(opening + key, old, new):
                        found[opening + key] = float(old), float(new)
        return found

    def _is_setting(self, name: str, old: Any, new: Any) -> bool:
        self._changes[name] = changes = self._changes.get(name, 0) + 1
        if self._looks <= _LEAST_LOOKS:
            self._changes[name] = _MOST_CHANGES + 1
        is_number = type(old) in _NUMBERS and type(new) in _NUMBERS
        # Nobody sets a width to one more than it was: this counts.
        is_count = is_number and type(new) is int and new - old == 1
        return is_number and not is_count and self._looks > _LEAST_LOOKS and changes <= _MOST_CHANGES


def _tables(name: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Sequence[str]]]:
    """Yield the numbers of a module, and those of small tables that it keeps, such as a scale for each adapter."""
    if keys := _keys(attributes):
        yield f"{name}.", attributes, tuple(key for key in keys if key != "training")
    for key, value in attributes.items():
        if (
            type(value) is dict
            and not key.startswith("_")
            and 0 < len(value) <= _MOST_IN_TABLE
            and (own := _keys(value))
        ):
            yield f"{name}.{key}/", value, own


def _keys(table: Mapping[Any, Any]) -> tuple[str, ...]:
    return tuple(
        key
        for key, value in table.items()
        if type(value) in _NUMBERS and type(key) is str and "." not in key and not key.startswith("_")
    )


def _read(table: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    return [table.get(key) for key in keys]


def is_causal(attention: object) -> bool:
    """Whether an attention module masks later keys, by its own attributes; the default is yes."""
    for name in ("is_causal", "causal"):
        said = getattr(attention, name, None)
        if isinstance(said, bool):
            return said
    mask_type = getattr(attention, "attn_mask_type", None)
    return mask_type is None or "causal" in str(getattr(mask_type, "name", mask_type)).lower()
