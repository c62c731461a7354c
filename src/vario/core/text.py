"""Text for people: closest names, numbers, durations and sizes; and JSON values."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

_NOT_SHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ud800-\\udfff]"
)


def shown(text: str) -> str:
    """Escape text for a terminal: control sequences and characters that reverse the text direction.

    Names of runs and tensors may come from anybody. Line ends and tabs are kept.
    """
    return _NOT_SHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a sentence that helps with an unknown name: the closest known one, or the list."""
    names = sorted(set(known))
    near = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    if near:
        return f"Did you mean '{near[0]}'?"
    if not names:
        return "There are none."
    return f"Known: {', '.join(names[:12])}{' and others' if len(names) > 12 else ''}."


def unknown(key: str, word: str, known: Iterable[str]) -> str:
    """Return the error text for an unknown name under a key."""
    return f"{key}: unknown '{word}'. {suggestion(word, known)}"


def reason(error: BaseException) -> str:
    """Format an exception in one line: its type and its text, shortened."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else f"{text[:300]} ..."
    return f"{type(error).__name__}: {text.rstrip('.')}" if text else type(error).__name__


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with four digits, and an exponent only if it helps."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.{digits}g}"


def when(seconds: float) -> str:
    """Format a Unix time as local date and minute; `?` if there is no such date."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "?"


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit: 850 us, 12.3 ms, 4.20 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(num_bytes: float) -> str:
    """Format bytes in binary units: 512 B, 1.5 KiB, 24.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def json_value(value: Any, odd: Callable[[float], Any], array: Callable[[Any], Any] | None = None) -> Any:
    """Convert a value to JSON's types; `odd` converts NaN and infinities, `array` converts arrays."""

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else odd(value)
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, Path):
            return str(value)
        if hasattr(value, "__dataclass_fields__"):
            return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
        if hasattr(value, "tolist"):
            return array(value) if array is not None and value.ndim else plain(value.tolist())
        return [plain(item) for item in value]

    return plain(value)
