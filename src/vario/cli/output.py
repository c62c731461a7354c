"""How commands speak: the answer on stdout, talk on stderr, colour only on a terminal, JSON that every parser reads."""

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
"""Columns when stdout is no terminal: wide enough that a table keeps its names whole."""

STAND_INS = "vario.stand_ins"
"""How a stream that cannot take a character, as in an ASCII locale, is written to: with one that is like it."""
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
    """Where answers go."""
    return _console(to_stderr=False)


def stderr() -> Console:
    """Where progress bars and remarks go."""
    return _console(to_stderr=True)


def say(text: str, to_stderr: bool = False) -> None:
    """Write a line at once; what no terminal should get from a name is escaped."""
    print(shown(text), file=sys.stderr if to_stderr else sys.stdout, flush=True)


class EscapedRecords(logging.Formatter):
    """Log records as a terminal may get them."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record."""
        return shown(super().format(record))


@cache
def _safe_console() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Writes its own colours and moves, and none that come with a name."""

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
    """The value in JSON's own types; NaN and the infinities, which JSON lacks, become "nan", "inf" and "-inf"."""
    return json_value(value, str)
