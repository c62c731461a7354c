"""Writes a heat map as a small indexed PNG, without a drawing package."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from vario.runs.views.heat import Heat

ANCHORS = ((13, 8, 60), (46, 60, 130), (38, 115, 140), (60, 165, 110), (170, 200, 60), (250, 235, 110))
"""From small to large, with rising brightness, so that it works without colours."""
NUM_COLOURS = 200
BAD = (224, 16, 144)
"""The colour of NaN and Inf, outside the scale."""
NOTHING = (228, 230, 234)
NO_SIZE = (188, 192, 199)
"""The colour of token ids and masks, whose numbers are no sizes."""
LEAST_DECADES = 0.2


def heat_png(heat: Heat) -> bytes:
    """One pixel for each target and bucket of steps: its size on a log scale, NaN and Inf in their own colour.

    Token ids and masks are grey.
    """
    indices = np.full(heat.values.shape, NUM_COLOURS + 1, np.uint8)
    sizes = np.abs(heat.values.astype(np.float64))
    is_size = ~np.array([bool(kind) for kind in heat.kinds] or [False] * len(sizes), bool)[:, None]
    shown = np.isfinite(sizes) & (sizes > 0) & is_size
    if shown.any():
        with np.errstate(all="ignore"):
            logs = np.log10(sizes)
        # A few values far below all others would leave only one colour for the rest.
        low, high = np.percentile(logs[shown], 1), logs[shown].max()
        scaled = (np.where(shown, logs, low) - low) / max(high - low, LEAST_DECADES)
        indices[shown] = (np.clip(scaled, 0, 1) * (NUM_COLOURS - 1)).astype(np.uint8)[shown]
    indices[(heat.values == 0) & (heat.has > 0)] = 0
    indices[(heat.has > 0) & ~is_size] = NUM_COLOURS + 2
    indices[heat.bad > 0] = NUM_COLOURS
    return _indexed_png(indices, [*_scale(), BAD, NOTHING, NO_SIZE])


def _scale() -> list[tuple[int, int, int]]:
    at = np.linspace(0, len(ANCHORS) - 1, NUM_COLOURS)
    channels = [np.interp(at, range(len(ANCHORS)), channel) for channel in zip(*ANCHORS, strict=True)]
    return [(int(red), int(green), int(blue)) for red, green, blue in zip(*channels, strict=True)]


def _indexed_png(indices: npt.NDArray[np.uint8], colours: list[tuple[int, int, int]]) -> bytes:
    height, width = indices.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(channel for colour in colours for channel in colour)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
