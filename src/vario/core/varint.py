"""Variable-length integers of Protocol Buffers and Thrift."""

from __future__ import annotations

_MOST_BITS = 64


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Read the number at a position and return it with its end; raises IndexError if the bytes end inside it."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= _MOST_BITS:
            raise ValueError("a number of more than 64 bits")
