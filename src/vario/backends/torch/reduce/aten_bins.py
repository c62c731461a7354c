"""Distributions on any device with plain tensor operations, without host syncs: for devices without Triton."""

from __future__ import annotations

import torch

from vario.core.elements.bins import FIRST_CELL, HIGHEST, LOWEST, MINUS_INF, NAN, NUM_BINS, SPLITS, ZERO

_CHUNK = 1 << 24
"""Elements at once: their bins take eight bytes each."""


def count_elements(elements: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return the counts of a flat tensor, divided by `scale`, as one row."""
    counts = torch.zeros(NUM_BINS, dtype=torch.int64, device=elements.device)
    for chunk in elements.split(_CHUNK):
        found = _bins(_floats(chunk, scale))
        counts.index_add_(0, found, torch.ones_like(found))
    return counts[None]


def _floats(elements: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    has_doubles = elements.device.type != "mps"
    if elements.is_complex():
        elements = elements.to(torch.complex128 if has_doubles else torch.complex64).abs()
    if scale is not None:
        wide = torch.float64 if has_doubles else torch.float32
        return elements.to(wide) / scale.to(elements.device, wide, non_blocking=True)
    return elements if elements.dtype is torch.float64 else elements.float()


def _bins(values: torch.Tensor) -> torch.Tensor:
    is_wide = values.dtype is torch.float64
    bits = values.view(torch.int64 if is_wide else torch.int32)
    fraction_bits, bias = (52, 1023) if is_wide else (23, 127)
    magnitude = bits & torch.iinfo(bits.dtype).max
    infinite = ((2 * bias + 1) << fraction_bits) if is_wide else 0x7F800000
    exponent = (magnitude >> fraction_bits) - bias
    cell = (exponent.clamp(LOWEST - 1, HIGHEST) - (LOWEST - 1)).long()
    # Also right for subnormal numbers that the device takes for zero.
    absolute = values.abs()
    for split in SPLITS:
        cell += absolute > split
    is_positive = (bits >= 0).long()
    found = FIRST_CELL + 2 * cell + is_positive
    found.masked_fill_(magnitude == 0, ZERO)
    found = torch.where(magnitude == infinite, MINUS_INF + is_positive, found)
    return found.masked_fill_(magnitude > infinite, NAN)
