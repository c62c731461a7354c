"""Triton kernels that count elements by bin: see `vario.core.elements.bins`.

A program counts one span of elements and adds its counts to the row of its tensor. Counts are whole numbers, so the
order of these additions does not matter. Bins come from the bits of the elements: no rounding, whatever the compiler
does with tiny numbers.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from vario.core.elements.bins import FIRST_CELL, HIGHEST, LOWEST, MINUS_INF, NAN, NUM_BINS, SPLITS, ZERO

BLOCK = 4096
LIST_ITERATIONS = 16
ONE_ITERATIONS = 4
SPAN = BLOCK * LIST_ITERATIONS
NUM_WARPS = 8
PADDED = 512
"""`NUM_BINS`, up to a power of two."""
WINDOW = 64
"""Exponents that have bins of their own in the quick way, and one place more."""

CONSTANTS = {"BLOCK": BLOCK, "NUM_BINS": NUM_BINS, "PADDED": PADDED, "WINDOW": WINDOW, "num_warps": NUM_WARPS}

_ZERO, _NAN, _MINUS_INF = (tl.constexpr(number) for number in (ZERO, NAN, MINUS_INF))
_FIRST, _LOWEST, _HIGHEST = (tl.constexpr(number) for number in (FIRST_CELL, LOWEST, HIGHEST))
_FIRST_SPLIT = tl.constexpr(int(math.log2(min(SPLITS))))
"""The exponent of the first cell that is split."""


@triton.jit
def _exponents(x, scale, HAS_SCALE: tl.constexpr, WIDE: tl.constexpr):
    """Return the bits of each element divided by `scale` without their sign, whether it is positive, and the exponent.

    That of zero is below all others.
    """
    if HAS_SCALE or WIDE:
        wide = x.to(tl.float64)
        if HAS_SCALE:
            wide = wide / scale
        bits = wide.to(tl.int64, bitcast=True)
        magnitude = bits & 0x7FFFFFFFFFFFFFFF
        exponent = ((magnitude >> 52) - 1023).to(tl.int32)
    else:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        exponent = (magnitude >> 23) - 127
    return magnitude, (bits >= 0).to(tl.int32), exponent


@triton.jit
def _bins(magnitude, is_positive, exponent, IS_DOUBLE: tl.constexpr):
    """Return the bin of each element."""
    if IS_DOUBLE:
        # 448, 57,344 and 65,504, and Inf.
        split = (magnitude > 0x407C000000000000).to(tl.int32)
        split += (magnitude > 0x40EC000000000000).to(tl.int32)
        split += (magnitude > 0x40EFFC0000000000).to(tl.int32)
        is_inf = magnitude == 0x7FF0000000000000
        is_nan = magnitude > 0x7FF0000000000000
    else:
        split = (magnitude > 0x43E00000).to(tl.int32)
        split += (magnitude > 0x47600000).to(tl.int32)
        split += (magnitude > 0x477FE000).to(tl.int32)
        is_inf = magnitude == 0x7F800000
        is_nan = magnitude > 0x7F800000
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
    WINDOW: tl.constexpr,
):
    """Add the counts of `num_elements` from the pointer `start` to a row.

    A histogram takes time for each of its bins. Nearly all elements of a span lie in a window of exponents below its
    largest ones: they have few bins. The others are counted apart, in blocks that have any.
    """
    lanes = tl.arange(0, BLOCK)
    usual = tl.zeros([2 * WINDOW], tl.int32)
    others = tl.zeros([PADDED], tl.int32)
    scale = 1.0
    if HAS_SCALE:
        scale = tl.load(scale_pointer).to(tl.float64)

    x = tl.load(start + lanes, mask=lanes < num_elements, other=0.0)
    _, _, exponent = _exponents(x, scale, HAS_SCALE, WIDE)
    # From the first block; below 448 no cell is split.
    top = tl.max(tl.where(exponent < _FIRST_SPLIT, exponent, _LOWEST), 0)
    lowest = tl.maximum(top + 2 - WINDOW, _LOWEST)
    for at in range(0, num_elements, BLOCK):
        inside = at + lanes < num_elements
        x = tl.load(start + at + lanes, mask=inside, other=0.0)
        magnitude, is_positive, exponent = _exponents(x, scale, HAS_SCALE, WIDE)
        place = exponent - lowest + 1
        is_usual = (place > 0) & (place < WINDOW) & (exponent < _FIRST_SPLIT)
        # Place 0 is for zero; that of the positive half is not read.
        found = tl.where(is_usual, is_positive * WINDOW + place, WINDOW)
        found = tl.where((magnitude == 0) & inside, 0, found)
        usual += tl.histogram(found, 2 * WINDOW)
        is_other = inside & (is_usual == 0) & (magnitude != 0)
        if tl.max(is_other.to(tl.int32), 0) > 0:
            bins = _bins(magnitude, is_positive, exponent, HAS_SCALE or WIDE)
            others += tl.histogram(tl.where(is_other, bins, PADDED - 1), PADDED)

    places = tl.arange(0, 2 * WINDOW)
    columns = _FIRST + 2 * (lowest + places % WINDOW - _LOWEST) + places // WINDOW
    columns = tl.where(places == 0, _ZERO, columns)
    tl.atomic_add(row + columns, usual, mask=(usual > 0) & (places != WINDOW), sem="relaxed")
    columns = tl.arange(0, PADDED)
    tl.atomic_add(row + columns, others, mask=(columns < NUM_BINS) & (others > 0), sem="relaxed")


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
    WINDOW: tl.constexpr,
    ITERATIONS: tl.constexpr,
):
    """One tensor: program p counts the p-th span."""
    offset = tl.program_id(0).to(tl.int64) * (BLOCK * ITERATIONS)
    count = tl.minimum(num_elements - offset, BLOCK * ITERATIONS).to(tl.int32)
    _count_span(elements + offset, count, row, scale_pointer, HAS_SCALE, WIDE, BLOCK, NUM_BINS, PADDED, WINDOW)


@triton.jit
def count_list(
    addresses,
    owners,
    offsets,
    sizes,
    like,
    rows,
    scale_pointer,
    ALIGNED: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BINS: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """A list of tensors of one dtype: program p counts `sizes[p]` elements of the tensor with number `owners[p]`.

    They begin `offsets[p]` bytes after its address; its counts are in the row of that number.
    """
    program = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners + program)
    address = tl.load(addresses + owner) + tl.load(offsets + program)
    start = address.to(tl.pointer_type(like.dtype.element_ty))
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    row = rows + owner.to(tl.int64) * NUM_BINS
    _count_span(start, tl.load(sizes + program), row, scale_pointer, HAS_SCALE, WIDE, BLOCK, NUM_BINS, PADDED, WINDOW)
