"""What merged parts say of themselves: from `merged.json`, or else from their footers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.errors import RunCorrupt
from vario.core.merged_parts import KEY, MergedPart, merged_part
from vario.core.run_files.shapes import read_json
from vario.core.run_format import MERGED_PARTS, part_range
from vario.runs.files.rollups import all_steps
from vario.runs.files.row_files import PART_DEPTH, Part, Span, session_of

_WRONG = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class MergedParts:
    """The file `merged.json` of one quantity, read again when it changes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MERGED_PARTS
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, MergedPart] = {}

    def read(self) -> Mapping[str, MergedPart]:
        """Return what merged parts say, by their names; a part that is missing says it itself."""
        try:
            status = self._path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            self._known = {}
            return self._known
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        if stamp != self._stamp:
            self._stamp, self._known = stamp, self._read()
        return self._known

    def _read(self) -> dict[str, MergedPart]:
        told: Any = (read_json(self._path, PART_DEPTH) or {}).get("parts", {})
        try:
            found = {name: part_range(name) for name in told}
            return {name: merged_part(*place, told[name]) for name, place in found.items() if place is not None}
        except _WRONG as error:
            raise RunCorrupt(f"{self._path}: {error!r}. It may be deleted: the parts say the same.") from error


def read_merged(part: Part) -> MergedPart:
    """Read what a merged part says in its footer."""
    metadata = part.footer.metadata or {}
    session_of(part.path, metadata)
    try:
        return merged_part(part.number, part.last_number, json.loads(metadata[KEY.encode()]))
    except (*_WRONG, RecursionError) as error:
        raise RunCorrupt(f"{part.path}: does not say which parts it took the place of") from error


def lacking(parts: Iterable[MergedPart], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether rows of these steps may have been dropped as they grew old."""
    found = np.zeros(len(steps), np.bool_)
    for part in parts:
        inside = np.zeros(len(steps), np.bool_)
        for first, last in part.thinned:
            inside |= (steps >= first) & (steps <= last)
        found |= inside & ~np.isin(steps, all_steps(part.whole))
    return found


def thinned_text(quantity: str, spans: Sequence[Span]) -> str:
    """Say in which steps a quantity is downsampled; empty if nowhere."""
    if not spans:
        return ""
    shown = ", ".join(f"{first} to {last}" for first, last in spans[:3])
    more = f" and {len(spans) - 3} more ranges" if len(spans) > 3 else ""
    return (
        f"{quantity}: downsampled at steps {shown}{more}: only rows of some steps, of steps around incidents, and rows "
        "with NaN or Inf are left of them."
    )
