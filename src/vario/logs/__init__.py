"""Logs that other tools leave behind, read into one noun: a History. One format is one file here.

A file in this folder holds a function decorated with `log_format`, which makes it known; other packages use the entry
point group `vario.logs`. A format says which files may be its own, by name or by a look at the content, and reads one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from vario.core.registry import Registry
from vario.logs.history import History

Reader = Callable[[Path], History]
Look = Callable[[str], bool]


@dataclass(frozen=True)
class LogFormat:
    """One kind of log."""

    name: str
    doc: str
    patterns: tuple[str, ...]
    """Names its files have, as globs."""
    order: int
    """Where several formats are found side by side, the lowest tells most about the run."""
    looks_right: Look | None
    """Whether the text of a file is of this format; None where the name alone decides."""
    whole_folder: bool
    """Whether the files of one folder are one log, so that the folder is what is read."""
    read: Reader
    module: str

    def knows(self, path: Path) -> bool:
        """Whether a file's name is one of this format's."""
        return any(fnmatch(path.name, pattern) for pattern in self.patterns)


def log_format(
    name: str, patterns: tuple[str, ...], order: int, looks_right: Look | None = None, whole_folder: bool = False
) -> Callable[[Reader], LogFormat]:
    """Make a function that reads one file a log format; its docstring describes it."""

    def make(read: Reader) -> LogFormat:
        doc = (read.__doc__ or "").strip()
        return LogFormat(name, doc, patterns, order, looks_right, whole_folder, read, read.__module__)

    return make


LOG_FORMATS: Registry[LogFormat] = Registry(
    "log formats", __name__, lambda part: part.name if isinstance(part, LogFormat) else None
)


def formats() -> list[LogFormat]:
    """All formats, the most telling first."""
    return sorted((found.part for found in LOG_FORMATS), key=lambda each: (each.order, each.name))
