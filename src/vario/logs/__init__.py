"""Logs of other tools, read into a History. Each file here is one format.

A function decorated with `log_format` registers a format; other packages use the entry point group `vario.logs`. A
format recognizes its files, by name or by content, and reads one.
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
    """Globs that match the names of its files."""
    order: int
    """If several formats are found together, the lowest is read: it has the most about the run."""
    looks_right: Look | None
    """Whether a file's text is of this format; None if the name alone decides."""
    whole_folder: bool
    """Whether all files of a folder are one log, so that the folder is read."""
    read: Reader
    module: str

    def knows(self, path: Path) -> bool:
        """Whether a file's name matches this format."""
        return any(fnmatch(path.name, pattern) for pattern in self.patterns)


def log_format(
    name: str, patterns: tuple[str, ...], order: int, looks_right: Look | None = None, whole_folder: bool = False
) -> Callable[[Reader], LogFormat]:
    """Register a function that reads one file as a log format; its docstring describes the format."""

    def make(read: Reader) -> LogFormat:
        doc = (read.__doc__ or "").strip()
        return LogFormat(name, doc, patterns, order, looks_right, whole_folder, read, read.__module__)

    return make


LOG_FORMATS: Registry[LogFormat] = Registry(
    "log formats", __name__, lambda part: part.name if isinstance(part, LogFormat) else None
)


def formats() -> list[LogFormat]:
    """Return all formats, the most informative first."""
    return sorted((found.part for found in LOG_FORMATS), key=lambda each: (each.order, each.name))
