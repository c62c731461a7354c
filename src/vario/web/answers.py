"""What an address answers: strict JSON, bytes or text, and errors as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.core.text import json_value
from vario.web.parameters import Parameter

JSON = "application/json"
CSV = "text/csv; charset=utf-8"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"
EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """A body that is ready to be sent."""

    body: bytes
    media: str = JSON
    file_name: str | None = None
    """What a browser should call it where it keeps it."""


FRESH_SECONDS = 5.0

Values = Mapping[str, Any]
"""The parameters of an address, checked."""


@dataclass(frozen=True)
class Endpoint:
    """One address: what it is for, what it takes, and the function that answers."""

    path: str
    summary: str
    answer: Callable[..., Any]
    """Called with what is served and the parameters; answers an Answer, or anything JSON can say."""
    parameters: tuple[Parameter, ...] = ()
    media: tuple[str, ...] = (JSON,)
    """What it may answer with, the usual one first."""
    body: type[object] | None = None
    """The type in `bodies` of what it answers as JSON, or of its events by their names."""
    head: type[object] | None = None
    """The type of the JSON that stands before the numbers of a binary answer."""
    is_stream: bool = False
    """Whether it goes on, event by event."""
    is_kept: bool = True
    """Whether an answer stays true while no file of the run changes."""
    fresh_seconds: float | None = None
    """How long it may be kept even then, where it also depends on the clock: a run may have died."""


def encode(value: Any) -> bytes:
    """Strict JSON: NaN and the infinities, which JSON lacks, are null, and bytes of a path that are no text a `?`."""
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
