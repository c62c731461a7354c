"""Triton kernels: all columns of a Summary in one pass, for one tensor or for a whole list in one launch.

A program reduces one span of elements to one partial row; `finish` folds each tensor's partial rows into its Summary.
The loop over a full span has no masks and no counters for NaN and Inf. A span whose own sums are not finite, or whose
elements hardly differ, is read again the careful way.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 1024
LIST_ITERATIONS = 64
ONE_ITERATIONS = 32
"""Measured on an H200: long spans suit a list of gigabytes, shorter ones a single activation."""
SPAN = BLOCK * LIST_ITERATIONS
NUM_WARPS = 8
PARTIAL_COLUMNS = 7
"""sum, sum_squares, min, max, nans, infs, zeros: the number of elements is known without looking."""


@triton.jit
def _reduce_span(
    start,
    num_elements,
    partial,
    eps,
    scale_pointer,
    HAS_SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    WITH_EXTREMES: tl.constexpr,
    WITH_ZEROS: tl.constexpr,
    BLOCK: tl.constexpr,
    ITERATIONS: tl.constexpr,
):
    """Reduce `num_elements` (at most BLOCK * ITERATIONS) from the pointer `start` to one partial row."""
    dtype = tl.float64 if WIDE else tl.float32
    lanes = tl.arange(0, BLOCK)
    zeros = tl.zeros([BLOCK], tl.int32)
    nans = tl.full((), 0, tl.int32)
    infs = tl.full((), 0, tl.int32)
    scale = 1.0
    if HAS_SCALE:
        scale = tl.load(scale_pointer).to(tl.float32)
    threshold = eps * scale

    is_wide = num_elements != BLOCK * ITERATIONS
    if num_elements == BLOCK * ITERATIONS:
        total = tl.zeros([BLOCK], dtype)
        squares = tl.zeros([BLOCK], dtype)
        low = tl.full([BLOCK], float("inf"), dtype)
        high = tl.full([BLOCK], float("-inf"), dtype)
        for i in range(ITERATIONS):
            x = tl.load(start + i * BLOCK + lanes).to(dtype)
            total += x
            if WITH_SQUARES:
                squares += x * x
            if WITH_EXTREMES:
                low = tl.minimum(low, x)
                high = tl.maximum(high, x)
            if WITH_ZEROS:
                zeros += (tl.abs(x) < threshold).to(tl.int32)
        span_total = tl.sum(total, 0).to(tl.float64)
        span_squares = tl.sum(squares, 0).to(tl.float64)
        span_low = tl.min(low, 0).to(tl.float64)
        span_high = tl.max(high, 0).to(tl.float64)
        # NaN and Inf fail this comparison, and so does a finite sum that overflowed float32.
        is_wide = not (tl.abs(span_total) + span_squares < 3.0e38)
        if WITH_SQUARES:
            # Nearly constant: the deviation is lost in float32 squares. Tiny: the squares themselves are.
            is_wide = is_wide | (span_total * span_total > 0.999 * span_squares * num_elements)
            is_wide = is_wide | ((span_squares < 1e-30) & ((span_total != 0) | (span_low < 0) | (span_high > 0)))
    else:
        span_total = tl.full((), 0.0, tl.float64)
        span_squares = tl.full((), 0.0, tl.float64)
        span_low = tl.full((), 0.0, tl.float64)
        span_high = tl.full((), 0.0, tl.float64)

    # The careful way: float64, masked, NaN and Inf counted. Small tensors always go here.
    if is_wide:
        wide_total = tl.zeros([BLOCK], tl.float64)
        wide_squares = tl.zeros([BLOCK], tl.float64)
        wide_low = tl.full([BLOCK], float("inf"), tl.float64)
        wide_high = tl.full([BLOCK], float("-inf"), tl.float64)
        lane_nans = tl.zeros([BLOCK], tl.int32)
        lane_infs = tl.zeros([BLOCK], tl.int32)
        zeros = tl.zeros([BLOCK], tl.int32)
        for i in range(tl.cdiv(num_elements, BLOCK)):
            inside = i * BLOCK + lanes < num_elements
            x = tl.load(start + i * BLOCK + lanes, mask=inside, other=0.0).to(dtype).to(tl.float64)
            wide_total += x
            wide_squares += x * x
            wide_low = tl.minimum(wide_low, tl.where(inside, x, float("inf")))
            wide_high = tl.maximum(wide_high, tl.where(inside, x, float("-inf")))
            lane_nans += (x != x).to(tl.int32)
            lane_infs += (tl.abs(x) == float("inf")).to(tl.int32)
            zeros += ((tl.abs(x) < threshold) & inside).to(tl.int32)
        span_total = tl.sum(wide_total, 0)
        span_squares = tl.sum(wide_squares, 0)
        span_low = tl.min(wide_low, 0)
        span_high = tl.max(wide_high, 0)
        nans = tl.sum(lane_nans, 0)
        infs = tl.sum(lane_infs, 0)

    inverse = 1.0 / scale
    tl.store(partial + 0, span_total * inverse)
    tl.store(partial + 1, span_squares * inverse * inverse)
    if WITH_EXTREMES:
        tl.store(partial + 2, span_low * inverse)
        tl.store(partial + 3, span_high * inverse)
    tl.store(partial + 4, nans.to(tl.float64))
    tl.store(partial + 5, infs.to(tl.float64))
    tl.store(partial + 6, tl.sum(zeros, 0).to(tl.float64))


@triton.jit(do_not_specialize=["num_elements", "first_partial", "eps"])
def reduce_one(
    elements,
    num_elements,
    partials,
    first_partial,
    eps,
    scale_pointer,
    HAS_SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    WITH_EXTREMES: tl.constexpr,
    WITH_ZEROS: tl.constexpr,
    PARTIAL_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ITERATIONS: tl.constexpr,
):
    """One tensor: program p reduces the p-th span to partial row `first_partial + p`."""
    program = tl.program_id(0).to(tl.int64)
    # From the end: what was written last is likely still in the cache.
    offset = (tl.num_programs(0) - 1 - program) * (BLOCK * ITERATIONS)
    count = tl.minimum(num_elements - offset, BLOCK * ITERATIONS).to(tl.int32)
    partial = partials + (first_partial + program) * PARTIAL_COLUMNS
    _reduce_span(
        elements + offset,
        count,
        partial,
        eps,
        scale_pointer,
        HAS_SCALE,
        WIDE,
        WITH_SQUARES,
        WITH_EXTREMES,
        WITH_ZEROS,
        BLOCK,
        ITERATIONS,
    )


@triton.jit(do_not_specialize=["first_partial", "eps"])
def reduce_list(
    addresses,
    owners,
    offsets,
    sizes,
    like,
    partials,
    first_partial,
    eps,
    scale_pointer,
    ALIGNED: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    WITH_EXTREMES: tl.constexpr,
    WITH_ZEROS: tl.constexpr,
    PARTIAL_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    ITERATIONS: tl.constexpr,
):
    """A list of tensors of one dtype: program p reduces `sizes[p]` elements of the tensor with number `owners[p]`.

    They begin `offsets[p]` bytes after its address.
    """
    program = tl.program_id(0).to(tl.int64)
    address = tl.load(addresses + tl.load(owners + program)) + tl.load(offsets + program)
    start = address.to(tl.pointer_type(like.dtype.element_ty))
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    partial = partials + (first_partial + program) * PARTIAL_COLUMNS
    _reduce_span(
        start,
        tl.load(sizes + program),
        partial,
        eps,
        scale_pointer,
        HAS_SCALE,
        WIDE,
        WITH_SQUARES,
        WITH_EXTREMES,
        WITH_ZEROS,
        BLOCK,
        ITERATIONS,
    )


@triton.jit
def finish(partials, ranges, rows, PARTIAL_COLUMNS: tl.constexpr, ROW_COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Fold partial rows into Summaries: program r folds those in `ranges[r]` into row r, all but its count."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(ranges + 2 * row)
    last = tl.load(ranges + 2 * row + 1)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    low = tl.full([BLOCK], float("inf"), tl.float64)
    high = tl.full([BLOCK], float("-inf"), tl.float64)
    nans = tl.zeros([BLOCK], tl.float64)
    infs = tl.zeros([BLOCK], tl.float64)
    zeros = tl.zeros([BLOCK], tl.float64)
    for at in range(first, last, BLOCK):
        inside = at + lanes < last
        partial = partials + (at + lanes) * PARTIAL_COLUMNS
        total += tl.load(partial + 0, mask=inside, other=0.0)
        squares += tl.load(partial + 1, mask=inside, other=0.0)
        low = tl.minimum(low, tl.load(partial + 2, mask=inside, other=float("inf")))
        high = tl.maximum(high, tl.load(partial + 3, mask=inside, other=float("-inf")))
        nans += tl.load(partial + 4, mask=inside, other=0.0)
        infs += tl.load(partial + 5, mask=inside, other=0.0)
        zeros += tl.load(partial + 6, mask=inside, other=0.0)
    out = rows + row * ROW_COLUMNS
    tl.store(out + 1, tl.sum(total, 0))
    tl.store(out + 2, tl.sum(squares, 0))
    tl.store(out + 3, tl.min(low, 0))
    tl.store(out + 4, tl.max(high, 0))
    tl.store(out + 5, tl.sum(nans, 0))
    tl.store(out + 6, tl.sum(infs, 0))
    tl.store(out + 7, tl.sum(zeros, 0))
