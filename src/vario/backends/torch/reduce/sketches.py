"""A random projection of many tensors to few numbers, which keeps the angles between them; no memory of their size.

Each element is added to one of the numbers, chosen by a hash of its tensor's name and its place, with a sign from the
same hash (a count sketch). So all ranks project alike without talking, and sketches of sums are sums of sketches.
"""

from __future__ import annotations

import zlib

import torch

from vario.backends.protocols.observing import Later
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.tensors import aside, local_part

_CHUNK = 1 << 20
"""Elements that are hashed at a time."""
_WORD = 0xFFFFFFFF
_FACTOR = 0x45D9F3B


class TorchSketch:
    """One projection in progress."""

    def __init__(self, size: int, seed: int) -> None:
        """`size`: a power of two."""
        self._size = size
        self._seed = seed
        self._sums: torch.Tensor | None = None
        self.num_elements = 0

    def add(self, name: str, tensor: torch.Tensor) -> bool:
        """Add a tensor; False if its values cannot be read."""
        part = local_part(tensor)
        if part is None or part.is_sparse or not (part.is_floating_point() or part.is_complex()):
            return False
        if part.is_complex():
            part = torch.view_as_real(part.resolve_conj())
        with aside(part.device):
            if self._sums is None:
                self._sums = torch.zeros(self._size, dtype=torch.float32, device=part.device)
            values = part.reshape(-1)
            start = zlib.crc32(f"{self._seed} {name}".encode())
            for at in range(0, len(values), _CHUNK):
                chunk = values[at : at + _CHUNK].float()
                place = _hash(torch.arange(at, at + len(chunk), device=chunk.device), start)
                sign = (place >> 20).bitwise_and_(1).mul_(2).sub_(1)
                sums = torch.zeros_like(self._sums, device=chunk.device)
                sums.index_add_(0, place.bitwise_and_(self._size - 1), chunk * sign)
                self._sums += sums.to(self._sums.device)
        self.num_elements += len(values)
        return True

    def later(self) -> Later | None:
        """Start copying the numbers to the host; None if nothing was added."""
        return None if self._sums is None else fetch_later(self._sums)


def _hash(places: torch.Tensor, start: int) -> torch.Tensor:
    """Mix whole numbers within 32 bits, in place: products stay below 2^63, so nothing overflows."""
    mixed = places.add_(start).bitwise_and_(_WORD)
    for _ in range(3):
        mixed.bitwise_xor_(mixed >> 16).mul_(_FACTOR).bitwise_and_(_WORD)
    return mixed.bitwise_xor_(mixed >> 16)
