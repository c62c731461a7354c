"""Summaries of CPU tensors: a few ATen reductions over blocks that fit the cache.

Two rules make it fast. A block is small enough (1 MiB) that later passes read the cache, not memory. NaN and Inf are
searched only in blocks whose sums are not finite. Each block is reduced in float32 and blocks are added in float64, so
that the sums of a billion elements stay accurate. Small tensors, and blocks whose elements hardly differ or are tiny,
are reduced in float64: the rounding of float32 squares would hide their values.
"""

from __future__ import annotations

import math
import threading

import torch

from vario.backends.torch.reduce import native_lists
from vario.core.records import COLUMNS

BLOCK = 262_144
SMALL = 16_384
_scratch: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

Row = list[float]


def scratch(dtype: torch.dtype, which: int = 0) -> torch.Tensor:
    """Return a block of memory for intermediate results, one per thread, use and dtype."""
    key = (threading.get_ident(), which, dtype)
    block = _scratch.get(key)
    if block is None:
        # The script may have set another default device.
        block = _scratch[key] = torch.empty(BLOCK, dtype=dtype, device="cpu")
    return block


def summarise(elements: torch.Tensor, eps: float, columns: frozenset[str]) -> Row:
    """Return the Summary of a flat CPU tensor of any real dtype, or of complex magnitudes."""
    if elements.numel() and (row := native_lists.readable_summary(elements, eps, columns)) is not None:
        return row
    count = elements.numel()
    total = squares = zeros = nans = infs = 0.0
    low, high = math.inf, -math.inf
    with_squares = "sum_squares" in columns
    with_extremes = "min" in columns or "max" in columns
    for block in elements.split(BLOCK) if count > BLOCK else (elements,):
        block = _as_float(block, count <= SMALL)
        block_sum = block.sum().item()
        block_squares = torch.dot(block, block).item() if with_squares else 0.0
        block_low, block_high = math.inf, -math.inf
        if with_extremes and count:
            least, most = torch.aminmax(block)
            block_low, block_high = least.item(), most.item()
        is_delicate = False
        if with_squares and block.dtype is torch.float32:
            is_constant = block_sum * block_sum > 0.999 * block_squares * block.numel()
            is_tiny = block_squares < 1e-30 and (block_sum != 0 or block_low < 0 or block_high > 0)
            is_delicate = is_constant or is_tiny
        if is_delicate or not math.isfinite(block_sum + block_squares):
            block_sum, block_squares, block_low, block_high, block_nans, block_infs = _look_closely(block)
            nans += block_nans
            infs += block_infs
        total += block_sum
        squares += block_squares
        low, high = min(low, block_low), max(high, block_high)
        if "zeros" in columns:
            zeros += _num_zeros(block, eps)
    if low > high or not with_extremes:
        low = high = math.nan
    return [float(count), total, squares, low, high, nans, infs, zeros]


def _as_float(block: torch.Tensor, is_small: bool) -> torch.Tensor:
    if block.dtype is torch.float64 or (block.dtype is torch.float32 and not is_small):
        return block
    if block.is_complex():
        return block.to(torch.complex128).abs()
    dtype = torch.float32 if block.is_floating_point() and not is_small else torch.float64
    return scratch(dtype)[: block.numel()].copy_(block)


def _look_closely(block: torch.Tensor) -> tuple[float, float, float, float, float, float]:
    """Return exact sums, extremes and both counts of a block for which quick float32 sums are not accurate enough."""
    marks = scratch(block.dtype, 1)[: block.numel()]
    num_nans = int(torch.ne(block, block, out=marks).sum().item())
    num_infs = int(torch.eq(torch.abs(block, out=marks), math.inf, out=marks).sum().item())
    if num_nans == block.numel():
        return math.nan, math.nan, math.inf, -math.inf, num_nans, num_infs
    least, most = torch.aminmax(block if not num_nans else block[block == block])
    if num_nans:
        return math.nan, math.nan, least.item(), most.item(), num_nans, num_infs
    wide = block.double()
    return wide.sum().item(), torch.dot(wide, wide).item(), least.item(), most.item(), num_nans, num_infs


def _num_zeros(block: torch.Tensor, eps: float) -> int:
    if eps == 0:
        return block.numel() - int(torch.count_nonzero(block))
    # Ones where |x| < eps, written and summed as floats: several times faster than counting a boolean mask.
    magnitude = torch.abs(block, out=scratch(block.dtype, 1)[: block.numel()])
    return int(torch.lt(magnitude, eps, out=magnitude).sum().item())


def divide(row: Row, scale: float) -> Row:
    """Return the Summary of the same tensor divided by `scale`."""
    if scale == 0:
        return row
    divided = list(row)
    for name, factor in (("sum", scale), ("sum_squares", scale * scale), ("min", scale), ("max", scale)):
        divided[COLUMNS.index(name)] /= factor
    return divided
