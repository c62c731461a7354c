"""Triton kernels that count elements by bin: see `vario.core.bins`.

A program counts one span of elements and adds its counts to the row of its tensor. Counts are whole numbers, so the
order of these additions does not matter. Bins come from the bits of the elements: no rounding, whatever the compiler
does with tiny numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vario.core.bins import FIRST_CELL, HIGHEST, LOWEST, MINUS_INF, NAN, NUM_BINS, PLUS_INF, ZERO

BLOCK = 4096
LIST_ITERATIONS = 16
ONE_ITERATIONS = 4
SPAN = BLOCK * LIST_ITERATIONS
NUM_WARPS = 8
PADDED = 512
"""`NUM_BINS`, up to a power of two."""

CONSTANTS = {"BLOCK": BLOCK, "NUM_BINS": NUM_BINS, "PADDED": PADDED, "num_warps": NUM_WARPS}

_ZERO, _NAN, _MINUS_INF, _PLUS_INF = (tl.constexpr(number) for number in (ZERO, NAN, MINUS_INF, PLUS_INF))
_FIRST, _LOWEST, _HIGHEST = (tl.constexpr(number) for number in (FIRST_CELL, LOWEST, HIGHEST))


@triton.jit
def _bins(x, scale, HAS_SCALE: tl.constexpr, WIDE: tl.constexpr):
    """Return the bin of each element, divided by `scale`."""
    if HAS_SCALE or WIDE:
        wide = x.to(tl.float64)
        if HAS_SCALE:
            wide = wide / scale
        bits = wide.to(tl.int64, bitcast=True)
        magnitude = bits & 0x7FFFFFFFFFFFFFFF
        exponent = ((magnitude >> 52) - 1023).to(tl.int32)
        # 448, 57,344 and 65,504, and Inf.
        split = (magnitude > 0x407C000000000000).to(tl.int32)
        split += (magnitude > 0x40EC000000000000).to(tl.int32)
        split += (magnitude > 0x40EFFC0000000000).to(tl.int32)
        is_inf = magnitude == 0x7FF0000000000000
        is_nan = magnitude > 0x7FF0000000000000
    else:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        exponent = (magnitude >> 23) - 127
        split = (magnitude > 0x43E00000).to(tl.int32)
        split += (magnitude > 0x47600000).to(tl.int32)
        split += (magnitude > 0x477FE000).to(tl.int32)
        is_inf = magnitude == 0x7F800000
        is_nan = magnitude > 0x7F800000
    is_positive = (bits >= 0).to(tl.int32)
    cell = tl.minimum(tl.maximum(exponent, _LOWEST - 1), _HIGHEST) - (_LOWEST - 1) + split
    found = _FIRST + 2 * cell + is_positive
    found = tl.where(magnitude == 0, _ZERO, found)
    found = tl.where(is_inf, _MINUS_INF + is_positive, found)
    return tl.where(is_nan, _NAN, found)


@triton.jit
def _count_span(
    start,
    num_elements,
    row,
    scale_pointer,
    HAS_SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BINS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Add the counts of `num_elements` from the pointer `start` to a row."""
    lanes = tl.arange(0, BLOCK)
    counts = tl.zeros([PADDED], tl.int32)
    scale = 1.0
    if HAS_SCALE:
        scale = tl.load(scale_pointer).to(tl.float64)
    for at in range(0, num_elements, BLOCK):
        inside = at + lanes < num_elements
        x = tl.load(start + at + lanes, mask=inside, other=0.0)
        # Where there is no element, a bin that does not exist.
        counts += tl.histogram(tl.where(inside, _bins(x, scale, HAS_SCALE, WIDE), PADDED - 1), PADDED)
    columns = tl.arange(0, PADDED)
    tl.atomic_add(row + columns, counts, mask=(columns < NUM_BINS) & (counts > 0), sem="relaxed")


@triton.jit(do_not_specialize=["num_elements"])
def count_one(
    elements,
    num_elements,
    row,
    scale_pointer,
    HAS_SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BINS: tl.constexpr,
    PADDED: tl.constexpr,
    ITERATIONS: tl.constexpr,
):
    """One tensor: program p counts the p-th span."""
    offset = tl.program_id(0).to(tl.int64) * (BLOCK * ITERATIONS)
    count = tl.minimum(num_elements - offset, BLOCK * ITERATIONS).to(tl.int32)
    _count_span(elements + offset, count, row, scale_pointer, HAS_SCALE, WIDE, BLOCK, NUM_BINS, PADDED)


@triton.jit
def count_list(
    addresses,
    owners,
    offsets,
    sizes,
    like,
    rows,
    scale_pointer,
    HAS_SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BINS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """A list of tensors of one dtype: program p counts `sizes[p]` elements of the tensor with number `owners[p]`.

    They begin `offsets[p]` bytes after its address; its counts are in the row of that number.
    """
    program = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners + program)
    address = tl.load(addresses + owner) + tl.load(offsets + program)
    start = address.to(tl.pointer_type(like.dtype.element_ty))
    row = rows + owner.to(tl.int64) * NUM_BINS
    _count_span(start, tl.load(sizes + program), row, scale_pointer, HAS_SCALE, WIDE, BLOCK, NUM_BINS, PADDED)
