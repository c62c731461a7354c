"""What is known of a part that took the place of several: which steps it stands for, and which rows it lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vario.core.run_format import REWRITTEN_FORMAT, part_name

KEY = "vario.merged"
"""The metadata of a Parquet file that says it."""

Span = tuple[int, int]
Progression = tuple[int, int, int]
"""First step, distance and count."""


@dataclass(frozen=True)
class MergedPart:
    """Rows of several consecutive parts in one file."""

    first: int
    last: int
    """Numbers of the first and last part whose place it took."""
    session: int
    """The latest of their sessions; what it discarded of earlier ones is gone."""
    steps: Span
    """The first and last step of their rows."""
    num_rows: int
    thinned: tuple[Span, ...] = ()
    """First and last step of each range in which rows were dropped; rows with NaN or Inf are always kept."""
    whole: tuple[Progression, ...] = ()
    """The steps in these ranges of which every row is kept."""

    @property
    def name(self) -> str:
        """The file's name."""
        return part_name(self.first, "parquet", self.last)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        told = {"session": self.session, "steps": self.steps, "rows": self.num_rows}
        return told if not self.thinned else {**told, "thinned": self.thinned, "whole": self.whole}

    def metadata(self) -> dict[bytes | str, bytes | str]:
        """Return the metadata of the file."""
        return {
            "vario.format": str(REWRITTEN_FORMAT),
            "vario.part": str(self.first),
            "vario.session": str(self.session),
            KEY: json.dumps(self.to_json()),
        }


def merged_part(first: int, last: int, told: Mapping[str, Any]) -> MergedPart:
    """Build it from plain values; raises ValueError, TypeError or KeyError for others."""
    begin, end = _numbers(told["steps"], 2)
    return MergedPart(
        first,
        last,
        _number(told["session"]),
        (begin, end),
        _number(told["rows"]),
        tuple((one[0], one[1]) for one in (_numbers(span, 2) for span in told.get("thinned", ()))),
        tuple((one[0], one[1], one[2]) for one in (_numbers(some, 3) for some in told.get("whole", ()))),
    )


def joined_spans(spans: Sequence[Span], steps_between: bool = False) -> tuple[Span, ...]:
    """Join ranges of steps that overlap or touch; with `steps_between` all of them, as nothing was recorded between."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and (steps_between or first <= found[-1][1] + 1):
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _numbers(values: Any, length: int) -> list[int]:
    found = [_number(value) for value in values]
    if len(found) != length:
        raise ValueError(f"expected {length} numbers, got {len(found)}")
    return found
