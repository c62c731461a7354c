"""A number that is equal on two ranks if their tensors are equal, and hardly ever otherwise."""

from __future__ import annotations

import torch

from vario.backends.torch.reduce.tensors import aside, flat, local_part

_MIX = 0x9E3779B1 - (1 << 32)
"""Odd, so that no difference is lost, with mixed bits, so that a change of any bit shows in the upper 24."""
_BITS = 0xFFFFFF
"""As many as a float32 represents exactly."""


def checksum(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the sum of a tensor's bits in four-byte words, mixed; None for a tensor that cannot be read."""
    local = local_part(tensor)
    if local is None or local.layout is not torch.strided:
        return None
    with aside(local.device):
        raw = flat(local).view(torch.uint8)
        if raw.storage_offset() % 4:
            raw = raw.clone()
        whole = raw.numel() // 4 * 4
        # Integer sums wrap around: unlike float sums they do not depend on the order of addition.
        total = raw[:whole].view(torch.int32).sum(dtype=torch.int32) + raw[whole:].sum(dtype=torch.int32)
        return (((total * _MIX) >> 8) & _BITS).to(torch.float32)
