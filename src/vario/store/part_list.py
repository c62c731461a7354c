"""The closed parts of one quantity: which files count, and what merged ones say of themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

from vario.core.errors import RunCorrupt
from vario.core.merged_parts import KEY, MergedPart, merged_part
from vario.core.run_files.parquet import read_footer
from vario.core.run_files.shapes import read_json
from vario.core.run_format import MERGED_PARTS, current_parts, part_range
from vario.store.folder import write_json
from vario.store.recovery import PART_DEPTH


class PartList:
    """The files of one folder. What merged parts say is kept in `merged.json`: a reader need not open them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._merged = self._read()
        self._sizes: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def current(self) -> list[tuple[int, int, str]]:
        """Return first and last number and name of the closed parts that count, in order, up to one not compacted."""
        found = current_parts(os.listdir(self.folder))
        return list(takewhile(lambda part: part[2].endswith(".parquet"), found))

    def size(self, name: str) -> int:
        """Return the bytes of a part on disk."""
        if name not in self._sizes:
            self._sizes[name] = (self.folder / name).stat().st_size
        return self._sizes[name]

    def num_rows(self, name: str) -> int:
        """Return the number of rows of a part."""
        if (known := self.merged(name)) is not None:
            return known.num_rows
        if name not in self._rows:
            self._rows[name] = int(read_footer(self.folder / name, PART_DEPTH).num_rows)
        return self._rows[name]

    def merged(self, name: str) -> MergedPart | None:
        """Return what a merged part says; None for a part that is as it was written."""
        first, last = part_range(name) or (0, 0)
        if first == last and name not in self._merged:
            return None
        if name not in self._merged:
            metadata: Any = read_footer(self.folder / name, PART_DEPTH).metadata or {}
            self._merged[name] = merged_part(first, last, json.loads(metadata[KEY.encode()]))
        return self._merged[name]

    def add(self, part: MergedPart) -> None:
        """Note a new merged part; those that it took the place of are forgotten."""
        self._merged[part.name] = part
        kept = {name for _, _, name in current_parts(self._merged)}
        self._merged = {name: one for name, one in self._merged.items() if name in kept}
        self._sizes.pop(part.name, None)
        self.write()

    def write(self) -> None:
        """Write what merged parts say."""
        write_json(self.folder / MERGED_PARTS, {"parts": {name: one.to_json() for name, one in self._merged.items()}})

    def superseded(self, names: Iterable[str]) -> list[str]:
        """Return those of these parts that do not count any more."""
        current = {name for _, _, name in current_parts(os.listdir(self.folder))}
        return [name for name in names if name not in current]

    def _read(self) -> dict[str, MergedPart]:
        try:
            told = (read_json(self.folder / MERGED_PARTS, PART_DEPTH) or {}).get("parts", {})
            return {
                name: merged_part(*found, content)
                for name, content in told.items()
                if (found := part_range(name)) is not None and (self.folder / name).exists()
            }
        except (RunCorrupt, ValueError, TypeError, KeyError, AttributeError):
            return {}  # their footers say the same
