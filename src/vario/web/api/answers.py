"""Responses: strict JSON, bytes or text, and errors as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.core.text import json_value
from vario.web.api.parameters import Parameter

JSON = "application/json"
CSV = "text/csv; charset=utf-8"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"
PNG = "image/png"
EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """A response body."""

    body: bytes
    media: str = JSON
    file_name: str | None = None
    """The file name for a download."""


FRESH_SECONDS = 5.0

Values = Mapping[str, Any]
"""The validated parameters of a request."""


@dataclass(frozen=True)
class Endpoint:
    """One endpoint: its description, its parameters, and the function that answers."""

    path: str
    summary: str
    answer: Callable[..., Any]
    """Called with the served folder and the parameters; returns an Answer, or JSON values."""
    parameters: tuple[Parameter, ...] = ()
    media: tuple[str, ...] = (JSON,)
    """The media types it may return, the default first."""
    body: type[object] | None = None
    """The type in `bodies` of its JSON response, or of its events by name."""
    head: type[object] | None = None
    """The type of the JSON before the numbers of a binary response."""
    is_stream: bool = False
    """Whether it streams events."""
    is_cached: bool = True
    """Whether a response is valid until a file of the run changes."""
    fresh_seconds: float | None = None
    """How long a response may be cached even then, if it also depends on the clock: a run may have died."""


def encode(value: Any) -> bytes:
    """Encode strict JSON: NaN and infinities become null, and undecodable bytes of a path become `?`."""
    text = json.dumps(
        json_value(value, lambda _: None, _column), allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )
    return text.encode("utf8", "replace")


def _column(values: np.ndarray[Any, Any]) -> list[Any]:
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        if not finite.all():
            objects = values.astype(object)
            objects[~finite] = None
            return list(objects.tolist())
    return list(values.tolist())
