"""How commands print: results on stdout, remarks on stderr, colour only on a terminal, strict JSON."""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import sys
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

from vario.core.text import json_value, shown

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 200
"""The width when stdout is not a terminal: wide enough to keep names in tables whole."""

STAND_INS = "vario.stand_ins"
"""The error handler for characters a stream cannot encode, as in an ASCII locale: writes a similar one."""
LIKE = {"\N{BRAILLE PATTERN BLANK}": " ", **dict(zip("█▇▆▅▄▃▂▁░┤│└─…", "##===__.-||+-~", strict=True))}


def _stand_in(character: str) -> str:
    unknown = "??" if unicodedata.east_asian_width(character) in "WF" else "?"
    return LIKE.get(character, "*" if "\u2800" < character <= "\u28ff" else unknown)


def _write_like(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_stand_in, error.object[error.start : error.end])), error.end


codecs.register_error(STAND_INS, _write_like)


def stdout() -> Console:
    """Return the console for results."""
    return _console(to_stderr=False)


def stderr() -> Console:
    """Return the console for progress bars and remarks."""
    return _console(to_stderr=True)


def say(text: str, to_stderr: bool = False) -> None:
    """Write a line immediately; control characters in names are escaped."""
    print(shown(text), file=sys.stderr if to_stderr else sys.stdout, flush=True)


class EscapedRecords(logging.Formatter):
    """Log records, escaped for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the escaped text of a record."""
        return shown(super().format(record))


@cache
def _safe_console() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Writes its own control sequences, but none that are part of a name."""

        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else shown(segment.text)
                yield segment if text == segment.text else Segment(text, segment.style)

    return SafeConsole


def _console(to_stderr: bool) -> Console:
    stream = sys.stderr if to_stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=STAND_INS)
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH
    return _safe_console()(file=stream, width=width, highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    """Write one strict JSON document."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Convert a value to JSON's types; NaN and infinities, which JSON lacks, become "nan", "inf" and "-inf"."""
    return json_value(value, str)
