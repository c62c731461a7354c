"""Snapshots of tensors, and the actions taken on incidents: files beside the rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.run_files import no_links
from vario.core.run_format import ACTIONS, SNAPSHOTS
from vario.store.line_files import cut_torn_end

MOST_SNAPSHOTS = 8
"""The most snapshots of a run on each rank."""
ROOM_FOR_WORDS = 8192
"""Bytes a snapshot needs besides its tensors, and a tensor besides its elements."""
ROOM_PER_TENSOR = 1024

Arrays = Mapping[str, npt.NDArray[Any]]


class SnapshotFolder:
    """`<run>/rank<k>/snapshots`: `step-<n>.npz` with tensors, and `step-<n>.json` that describes them."""

    def __init__(self, rank_folder: Path, most_bytes: int) -> None:
        """Snapshots of earlier sessions count as well."""
        self._folder = rank_folder / SNAPSHOTS
        found = list(self._folder.glob("step-*")) if self._folder.is_dir() else []
        self._bytes_left = most_bytes - sum(path.stat().st_size for path in found)
        self._names = {path.stem for path in found}

    @property
    def is_full(self) -> bool:
        """Whether there are as many snapshots as allowed."""
        return len(self._names) >= MOST_SNAPSHOTS

    def room(self, num_tensors: int) -> int:
        """Return the bytes left for the elements of this many tensors."""
        return self._bytes_left - ROOM_FOR_WORDS - num_tensors * ROOM_PER_TENSOR

    def reserve(self, step: int, arrays: Arrays) -> str:
        """Reserve a name and the room these tensors need, and return the name."""
        self._bytes_left = self.room(len(arrays)) - sum(array.nbytes for array in arrays.values())
        names = [f"step-{step}", *(f"step-{step}-{nth}" for nth in range(2, MOST_SNAPSHOTS + 1))]
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        return name

    def write(self, name: str, arrays: Arrays, description: dict[str, Any]) -> None:
        """Write both files, each atomically."""
        self._folder.mkdir(exist_ok=True)
        half = self._folder / f".{name}.tmp"
        with open(half, "wb", opener=no_links) as file:
            # Names end with the role of the tensor, so that none is the word `file`.
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(half, self._folder / f"{name}.npz")
        half.write_text(json.dumps(description, indent=1, allow_nan=False) + "\n", encoding="utf8")
        os.replace(half, self._folder / f"{name}.json")


class ActionLines:
    """`<run>/rank<k>/actions.jsonl`: one line per action."""

    def __init__(self, rank_folder: Path) -> None:
        self._path = rank_folder / ACTIONS
        self._is_whole = False

    def append(self, line: dict[str, Any]) -> None:
        """Append one action."""
        if not self._is_whole:
            cut_torn_end(self._path)
            self._is_whole = True
        with open(self._path, "a", encoding="utf8", opener=no_links) as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
