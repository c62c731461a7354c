"""A number that two ranks have in common when their tensors are the same, and hardly ever otherwise."""

from __future__ import annotations

import torch

from vario.backends.torch.reduce.tensors import aside, flat, local_part

_MIX = 0x9E3779B1 - (1 << 32)
"""Odd, so that no difference is lost, and of mixed bits, so that a change of any one shows among the upper 24."""
_BITS = 0xFFFFFF
"""So many that a float32 still holds the number exactly."""


def checksum(tensor: torch.Tensor) -> torch.Tensor | None:
    """The sum of a tensor's bits in words of four bytes, mixed; None for a tensor without numbers."""
    local = local_part(tensor)
    if local is None or local.layout is not torch.strided:
        return None
    with aside(local.device):
        raw = flat(local).view(torch.uint8)
        if raw.storage_offset() % 4:
            raw = raw.clone()
        whole = raw.numel() // 4 * 4
        # Sums of whole numbers wrap around: no order of adding changes them, as it does sums of floats.
        total = raw[:whole].view(torch.int32).sum(dtype=torch.int32) + raw[whole:].sum(dtype=torch.int32)
        return (((total * _MIX) >> 8) & _BITS).to(torch.float32)
