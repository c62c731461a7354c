"""The largest channels of a tensor, and how rows of the quantity `channel` store them.

A channel is a row or a column of a weight matrix, or a feature of an activation. The row's Summary is of the largest
magnitude of each channel; its detail has the few channels where that is highest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

QUANTITY = "channel"
MOST = 8
"""The channels that are kept by number."""

_HEAD = struct.Struct("<IHd")
_CHANNEL = struct.Struct("<Iff")


@dataclass(frozen=True)
class Channel:
    """One channel."""

    index: int
    absmax: float
    norm: float


@dataclass(frozen=True)
class TopChannels:
    """The channels with the largest elements, largest first, of all."""

    num_channels: int
    norm: float
    """Of the whole tensor."""
    channels: tuple[Channel, ...]

    def share(self, num: int = 1) -> float:
        """Return the share of the tensor's squares that the first few of these channels have; NaN for zeros alone."""
        whole = self.norm**2
        return sum(one.norm**2 for one in self.channels[:num]) / whole if whole else float("nan")


def encode(found: TopChannels) -> bytes:
    """Return what a row stores."""
    head = _HEAD.pack(found.num_channels, len(found.channels), found.norm)
    return head + b"".join(_CHANNEL.pack(one.index, one.absmax, one.norm) for one in found.channels)


def decode(stored: bytes) -> TopChannels:
    """Return what a row stores; raises ValueError for bytes that are none."""
    if len(stored) < _HEAD.size:
        raise ValueError("the channels of a row are cut off")
    num_channels, num, norm = _HEAD.unpack_from(stored)
    if len(stored) != _HEAD.size + num * _CHANNEL.size or num > num_channels:
        raise ValueError("the channels of a row are cut off")
    return TopChannels(num_channels, norm, tuple(Channel(*one) for one in _CHANNEL.iter_unpack(stored[_HEAD.size :])))


def merge(parts: Sequence[TopChannels]) -> TopChannels:
    """Merge the channels of several tensors with the same ones: micro-steps, or the batches of ranks.

    Exact for channels that are kept of each part.
    """
    largest: dict[int, float] = {}
    squares: dict[int, float] = {}
    for part in parts:
        for one in part.channels:
            largest[one.index] = max(one.absmax, largest.get(one.index, 0.0))
            squares[one.index] = one.norm**2 + squares.get(one.index, 0.0)
    order = sorted(largest, key=lambda index: (-largest[index], index))[:MOST]
    channels = tuple(Channel(index, largest[index], squares[index] ** 0.5) for index in order)
    norm = sum(part.norm**2 for part in parts) ** 0.5
    return TopChannels(max((part.num_channels for part in parts), default=0), norm, channels)
