"""Where the files of runs may lie: one module a kind, and the few operations that all of them have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from vario.core.errors import RunError, Unreachable, VarioError
from vario.core.masking import masked
from vario.core.text import reason

MOST_DEPTH = 4
"""How deep below a run's folder its files are: `rank0/outlines/gradient/1-000001-000016.parquet`."""
MOST_FILES = 200_000
"""The most files of one run: one with a thousand ranks has fewer."""
MOST_NAMES = 20_000
"""The most names directly in a folder of runs."""
MOST_NAME_BYTES = 255
ANSWER_SECONDS = float(os.environ.get("VARIO_ANSWER_SECONDS") or 30.0)
"""How long any answer may take; a place that takes longer counts as unreachable."""
CONNECT_SECONDS = min(10.0, ANSWER_SECONDS)


@dataclass(frozen=True)
class Entry:
    """A file or a folder, as its place lists it."""

    size: int
    tag: str
    """Another one when the content is another one."""
    mtime: float
    """Unix seconds by the clock of the place; 0: unknown."""
    is_folder: bool = False


Listing = Mapping[str, Entry]
"""By name below the folder that was listed, with slashes."""


class Place(Protocol):
    """A folder somewhere. Names are relative to it, with slashes.

    Everything raises FileNotFoundError for what is not there, and Unreachable for anything else that goes wrong.
    """

    url: str
    can_append: bool
    """Whether files can grow and be renamed there; otherwise they are only replaced, whole and at once."""
    num_parallel: int
    """How many requests may be on their way at a time."""

    def listed(self, folder: str, most: int = MOST_NAMES) -> dict[str, Entry]:
        """Return what is directly in a folder; nothing if there is no such folder."""

    def tree(self, folder: str, most: int = MOST_FILES) -> dict[str, Entry]:
        """Return the files below a folder, at most MOST_DEPTH levels down."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a range of bytes; fewer if the file ends before."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file: readers see the old or the new one."""

    def append(self, name: str, at: int, content: bytes) -> None:
        """Write at a place of a file, which ends after that."""

    def rename(self, name: str, new: str) -> None:
        """Rename a file, in place of what is there."""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def close(self) -> None:
        """Close connections."""


_ODD = re.compile(r"[\x00\\]")


def is_safe(name: str) -> bool:
    """Whether a name that a place lists may become a file of this machine: it stays below its folder."""
    try:
        parts = [part.encode() for part in name.split("/")]
    except UnicodeEncodeError:
        return False
    is_plain = all(part not in (b"", b".", b"..") and len(part) <= MOST_NAME_BYTES for part in parts)
    return is_plain and _ODD.search(name) is None


def check_count(url: str, count: int, most: int) -> None:
    """Raise for more files than a run has."""
    if count > most:
        raise RunError(f"{masked(url)}: lists more than {most:,} names, which no run has; not read")


@contextmanager
def told(url: str) -> Iterator[None]:
    """Turn what a library raises into errors of vario."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise FileNotFoundError(str(error)) from error
    except VarioError:
        raise
    except Exception as error:
        raise Unreachable(f"{masked(url)}: cannot be reached: {masked(reason(error))}") from error
