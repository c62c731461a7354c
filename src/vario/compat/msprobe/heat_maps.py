"""Heat maps of Adam's update and ratio over steps, as PNG pictures."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vario.statistics import Values

if TYPE_CHECKING:
    from vario.core.event_file import EventFile

DETAIL = 30
LOW, HIGH = -1.0, 1.0
WIDTH, HEIGHT = 640, 480
_MARGIN = 48
_SCALE = 3

Pixels = npt.NDArray[np.uint8]

# Dark blue through green to yellow: even in brightness, and colour-blind safe.
_COLOURS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=np.float64)
_GLYPHS = dict(
    zip(
        "0123456789-",
        ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71222", "75757", "75717", "00700"),
        strict=True,
    )
)
"""Five rows of three pixels, a digit each."""


class HeatMaps:
    """Pictures of all parameters, one more column per step, drawn less often as they grow."""

    def __init__(self, prefix: Callable[[str], str]) -> None:
        """`prefix` is the part before `adam_update` in a parameter's tag."""
        self._prefix = prefix
        self._waiting: dict[int, tuple[list[str], Callable[[], Values]]] = {}
        self._steps: dict[str, list[int]] = {}
        self._columns: dict[str, list[Values]] = {}
        self._drawn: dict[str, int] = {}

    def add(self, step: int, names: list[str], fetch: Callable[[], Values]) -> None:
        """Add one step's histograms, which may still be being copied."""
        self._waiting[step] = names, fetch

    def write(self, events: EventFile, now: float, is_last: bool) -> None:
        """Draw what has grown by a tenth since it was last drawn; at the end, everything."""
        for at in sorted(self._waiting):
            names, fetch = self._waiting.pop(at)
            tags = [self._prefix(name) + kind for kind in ("adam_update", "adam_ratio") for name in names]
            for tag, histogram in zip(tags, fetch(), strict=True):
                self._steps.setdefault(tag, []).append(at)
                self._columns.setdefault(tag, []).append(histogram)
        for tag, columns in self._columns.items():
            drawn = self._drawn.get(tag, 0)
            if len(columns) > (drawn if is_last else 1.1 * drawn):
                self._drawn[tag] = len(columns)
                picture = draw(np.array(columns).T, self._steps[tag])
                events.add_image(tag, picture, WIDTH, HEIGHT, self._steps[tag][-1], now)


def draw(table: Values, steps: list[int]) -> bytes:
    """Draw a PNG: values from -1 (bottom) to 1 (top), steps from left to right, brighter where there are more
    elements."""
    picture = np.full((HEIGHT, WIDTH, 3), 255, dtype=np.uint8)
    height, width = HEIGHT - 2 * _MARGIN, WIDTH - 2 * _MARGIN
    rows = (DETAIL - 1 - np.arange(height) * DETAIL // height).astype(int)
    columns = np.arange(width) * len(steps) // width
    brightness = np.log1p(table) / max(np.log1p(table).max(), 1e-9)
    picture[_MARGIN : _MARGIN + height, _MARGIN : _MARGIN + width] = _colour(brightness[np.ix_(rows, columns)])
    for text, top in (("1", _MARGIN), ("0", HEIGHT // 2 - 8), ("-1", HEIGHT - _MARGIN - 15)):
        _write(picture, text, top, _MARGIN - 8 - _text_width(text))
    _write(picture, str(steps[0]), HEIGHT - _MARGIN + 8, _MARGIN)
    if len(steps) > 1:
        _write(picture, str(steps[-1]), HEIGHT - _MARGIN + 8, WIDTH - _MARGIN - _text_width(str(steps[-1])))
    return png(picture)


def _colour(brightness: Values) -> Pixels:
    at = np.clip(brightness, 0, 1) * (len(_COLOURS) - 1)
    low = np.minimum(at.astype(int), len(_COLOURS) - 2)
    part = (at - low)[..., None]
    return np.asarray(np.rint(_COLOURS[low] * (1 - part) + _COLOURS[low + 1] * part), dtype=np.uint8)


def _text_width(text: str) -> int:
    return len(text) * 4 * _SCALE - _SCALE


def _write(picture: Pixels, text: str, top: int, left: int) -> None:
    for nth, character in enumerate(text):
        for row, bits in enumerate(_GLYPHS[character]):
            for column in range(3):
                if int(bits) & (4 >> column):
                    y, x = top + row * _SCALE, left + (nth * 4 + column) * _SCALE
                    picture[y : y + _SCALE, x : x + _SCALE] = 60


def png(pixels: Pixels) -> bytes:
    """Encode pixels as a PNG file."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b"")]
    body = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)
