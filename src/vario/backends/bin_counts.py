"""Counts the elements of arrays by bin, from the bits of their exponents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.elements.bins import (
    FIRST_CELL,
    HIGHEST,
    LOWEST,
    MINUS_INF,
    NAN,
    NUM_BINS,
    PLUS_INF,
    SPLITS,
    ZERO,
    Counts,
)

CHUNK = 1 << 16
"""Elements that are counted together: their codes stay in the processor's cache."""
_WIDE_CHUNK = 1 << 20

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Layout:
    """A binary floating-point format of IEEE 754."""

    unsigned: type[np.unsignedinteger[Any]]
    fraction_bits: int
    exponent_bits: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def num_codes(self) -> int:
        """Values of sign and exponent together."""
        return 2 << self.exponent_bits


_ENDS = tuple(float(2.0 ** np.frexp(split)[1]) for split in SPLITS)
"""The powers of two after the splits."""
_LAYOUTS = {np.dtype(np.float32): _Layout(np.uint32, 23, 8), np.dtype(np.float64): _Layout(np.uint64, 52, 11)}


@cache
def _bins_of_codes(layout: _Layout) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """Return the bin of each sign and exponent, and where it depends on the fraction as well."""
    codes = np.arange(layout.num_codes)
    exponents = (codes & ((1 << layout.exponent_bits) - 1)) - layout.bias
    cells = np.clip(exponents, LOWEST - 1, HIGHEST) - (LOWEST - 1)
    magnitudes = np.ldexp(1.0, np.clip(exponents, -1000, 1000))
    # The part of a split cell below the split; what is above it is added later.
    cells += sum((magnitudes > split).astype(np.int64) for split in SPLITS)
    is_positive = codes < layout.num_codes // 2
    is_delicate = (exponents == -layout.bias) | (exponents == layout.bias + 1)
    for split in SPLITS:
        is_delicate |= exponents == int(np.log2(split))
    return FIRST_CELL + 2 * cells + is_positive, is_delicate


def count_bins(values: npt.NDArray[Any], scale: float = 1.0) -> Counts:
    """Return the distribution of the elements of an array, divided by `scale`."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == np.float16:
        return _by_pattern(flat.view(np.uint16), _bins_of_half(), scale) if scale == 1.0 else _count(flat, scale)
    return _count(flat, scale)


def count_bfloats(patterns: npt.NDArray[np.uint16], scale: float = 1.0) -> Counts:
    """Return the distribution of bfloat16 elements, given as their bits."""
    if scale == 1.0:
        return _by_pattern(patterns.reshape(-1), _bins_of_bfloat(), scale)
    return _count(_widened(patterns.reshape(-1)), scale)


def count_each(values: npt.NDArray[Any], sizes: npt.NDArray[np.int64], scale: float = 1.0) -> Counts:
    """Return the distribution of each of several arrays that lie end to end."""
    counts = np.zeros((len(sizes), NUM_BINS), np.int64)
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        begin = int(ends[first] - sizes[first])
        # At most so many at once: their counts stay in the cache as well.
        last = int(np.searchsorted(ends, begin + CHUNK, side="right"))
        last = min(max(last, first + 1), first + 256)
        owners = np.repeat(np.arange(last - first), sizes[first:last])
        bins = _bins(_floats(values[begin : ends[last - 1]], scale)) + NUM_BINS * owners
        counts[first:last] = np.bincount(bins, minlength=NUM_BINS * (last - first)).reshape(-1, NUM_BINS)
        first = last
    return counts


def _count(flat: npt.NDArray[Any], scale: float) -> Counts:
    counts = np.zeros(NUM_BINS, np.int64)
    for start in range(0, len(flat), CHUNK):
        chunk = _floats(flat[start : start + CHUNK], scale)
        layout = _LAYOUTS[chunk.dtype]
        of_codes, are_delicate = _bins_of_codes(layout)
        codes = _codes(chunk, layout)
        numbers = np.bincount(codes, minlength=layout.num_codes)
        if numbers[are_delicate].any():
            numbers[are_delicate] = 0
            counts += np.bincount(_bins(chunk[are_delicate[codes]]), minlength=NUM_BINS)
        np.add.at(counts, of_codes, numbers)
    return counts


def _codes(values: npt.NDArray[Any], layout: _Layout) -> Codes:
    """Return sign and exponent of each element as one number."""
    bits = values.view(layout.unsigned)
    codes: Codes = (bits >> layout.unsigned(layout.fraction_bits)).astype(np.intp)
    return codes


def _floats(values: npt.NDArray[Any], scale: float) -> npt.NDArray[Any]:
    """Return elements as float32 or float64, divided by `scale`; complex ones as their magnitudes."""
    if values.dtype.kind == "c":
        values = np.abs(values.astype(np.complex128))
    if scale != 1.0:
        with np.errstate(all="ignore"):
            return values.astype(np.float64) / scale
    return values if values.dtype in _LAYOUTS else values.astype(np.float32 if values.itemsize <= 2 else np.float64)


def _bins(values: npt.NDArray[Any]) -> Codes:
    """Return the bin of each element."""
    layout = _LAYOUTS[values.dtype]
    codes = _codes(values, layout)
    of_codes, are_delicate = _bins_of_codes(layout)
    bins: Codes = of_codes[codes]
    delicate = np.flatnonzero(are_delicate[codes])
    if len(delicate):
        chosen = values[delicate]
        magnitudes = np.abs(chosen)
        found = bins[delicate]
        with np.errstate(invalid="ignore"):
            for split, end in zip(SPLITS, _ENDS, strict=True):
                found[(magnitudes > split) & (magnitudes < end)] += 2
        found[magnitudes == 0] = ZERO
        found[np.isnan(chosen)] = NAN
        found[np.isposinf(chosen)] = PLUS_INF
        found[np.isneginf(chosen)] = MINUS_INF
        bins[delicate] = found
    return bins


def _by_pattern(patterns: npt.NDArray[np.uint16], bins: Codes, scale: float) -> Counts:
    """Count 16-bit elements by their bits, and these by bin."""
    numbers = np.zeros(1 << 16, np.int64)
    for start in range(0, len(patterns), _WIDE_CHUNK):
        numbers += np.bincount(patterns[start : start + _WIDE_CHUNK], minlength=1 << 16)
    counts = np.zeros(NUM_BINS, np.int64)
    np.add.at(counts, bins, numbers)
    return counts


def _widened(patterns: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)


@cache
def _bins_of_half() -> Codes:
    return _bins(np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32))


@cache
def _bins_of_bfloat() -> Codes:
    return _bins(_widened(np.arange(1 << 16, dtype=np.uint16)))
