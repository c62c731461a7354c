"""Figures and tables that are kept beside a run: what they are called, and how large they may be.

`<run>/rank<k>/attachments/` has one file each, with a name of vario's own, and `attachments.jsonl` says what they are.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import asdict, dataclass
from typing import Any

from vario.core.params import Plain

FIGURE, TABLE = KINDS = "figure", "table"
ENDINGS = {FIGURE: "png", TABLE: "json"}
FILE = re.compile(r"[0-9]{6}-[a-z0-9-]{0,40}\.(png|json)")
"""A file's name: its number, and what is plain of the name that was given."""
PNG_START = b"\x89PNG\r\n\x1a\n"

MOST_FILES = 2000
"""The most attachments of a run on each rank."""
MOST_BYTES = 256 << 20
"""The most disk space for them."""
MOST_FIGURE_BYTES = 8 << 20
MOST_TABLE_BYTES = 4 << 20
MOST_ROWS = 1000
MOST_COLUMNS = 50
MOST_NAME = 200
"""The most characters of a name."""

MOST_OF_KIND = {FIGURE: MOST_FIGURE_BYTES, TABLE: MOST_TABLE_BYTES}


@dataclass(frozen=True)
class Attachment:
    """A figure or a table that is kept beside a run."""

    kind: str
    """figure or table."""
    name: str
    step: int
    time: float
    """Unix seconds."""
    file: str
    """The name of its file."""
    num_bytes: int
    rank: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return its line; the rank is that of the folder."""
        return {key: value for key, value in asdict(self).items() if key != "rank"}


@dataclass(frozen=True)
class Table:
    """A small table: its columns, and what is kept of its rows."""

    columns: list[str]
    rows: list[list[Plain]]
    num_rows: int
    """How many rows the table had; those beyond the limit are not kept."""


def file_name(number: int, kind: str, name: str) -> str:
    """Return the name of the file of an attachment."""
    plain = unicodedata.normalize("NFKD", name.casefold()).encode("ascii", "ignore").decode()
    return f"{number:06d}-{re.sub(r'[^a-z0-9]+', '-', plain).strip('-')[:40]}.{ENDINGS[kind]}"
