"""Keeps an answer within what a model can read: long lists, texts and curves are shortened, and the answer says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vario.core.text import json_value
from vario.runs.views.status.vitals import SPARK_POINTS, spark_of

MOST_CHARACTERS = 40_000
"""The most characters of an answer as JSON."""
MOST_TEXT = 20_000
"""The most characters of one text in it: its beginning and its end."""
MOST_NAMED = 20
"""The most shortened places that an answer names."""
LENGTHS = (500, 200, 100, 50, 20, 10, 5, 2, 1)
"""How many entries of a list are kept: the first of these with which the answer fits."""
LEAST_FIELDS = 64
"""A mapping of fewer entries is a record, whose fields are kept."""


def bounded(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as JSON values of at most 40,000 characters; `shortened` names what was left out.

    NaN and infinities become "nan", "inf" and "-inf", as `--json` prints them.
    """
    whole = json_value(answer, str, _fewer_numbers)
    for length in LENGTHS:
        places: list[str] = []
        found: dict[str, Any] = _short(whole, length, places, "")
        if _size(found) <= MOST_CHARACTERS:
            break
    while _size(found) > MOST_CHARACTERS:
        largest = max(found, key=lambda key: _size(found[key]))
        del found[largest]
        places.append(f"{largest}: left out, too large")
    if places:
        more = [f"and {len(places) - MOST_NAMED} more"] if len(places) > MOST_NAMED else []
        found["shortened"] = [*places[:MOST_NAMED], *more]
    return found


def _size(value: Any) -> int:
    return len(json.dumps(value))


def _fewer_numbers(values: Any) -> Any:
    """A curve of numbers in few points, as the dashboard draws it small: spikes and NaN stay."""
    if values.ndim != 1 or len(values) <= SPARK_POINTS or values.dtype.kind not in "fiu":
        return json_value(values.tolist(), str)
    points = spark_of(values.astype(float))
    return {"num_values": len(values), "downsampled": json_value(points, str)}


def _short(value: Any, length: int, places: list[str], place: str) -> Any:
    if isinstance(value, str):
        most = min(MOST_TEXT, 40 * length)
        if len(value) <= max(200, most):
            return value
        places.append(f"{place}: {most} of {len(value)} characters")
        return _middle_left_out(value, most)
    if isinstance(value, list):
        if len(value) > length:
            places.append(f"{place}: the first {length} of {len(value)}")
        return [_short(item, length, places, place) for item in value[:length]]
    if isinstance(value, dict):
        most = max(LEAST_FIELDS, length)
        if len(value) > most:
            places.append(f"{place}: {most} of {len(value)} entries")
        inner = f"{place}." if place else ""
        return {key: _short(value[key], length, places, f"{inner}{key}"[:100]) for key in list(value)[:most]}
    return value


def _middle_left_out(text: str, most: int) -> str:
    """Return the beginning and the end of a text, of about so many characters together."""
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
