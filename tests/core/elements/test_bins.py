"""Bins of distributions: counts agree with comparisons in float64, add up, and come back from storage as they were."""

import numpy as np
import pytest

from bin_oracle import DELICATE, counted, odd_numbers
from vario.backends.bin_counts import count_bfloats, count_bins, count_each
from vario.core.elements.bins import NUM_BINS, NUM_CELLS, BinTable, by_cell, decode, encode, merge_bins


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("scale", [1.0, 3.0, 65_536.0, 1e-3])
@pytest.mark.parametrize("num", [0, 1, 30, 5000, 200_003])
def test_counts_are_those_of_comparisons_with_the_edges(dtype, scale, num):
    with np.errstate(all="ignore"):
        values = odd_numbers(num).astype(dtype)
    np.testing.assert_array_equal(count_bins(values, scale), counted(values, scale))
    assert count_bins(values, scale).sum() == num


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_every_bfloat16_is_in_its_bin(scale):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)
    np.testing.assert_array_equal(count_bfloats(patterns, scale), counted(values, scale))


def test_every_float16_is_in_its_bin():
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(count_bins(values), counted(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_end_to_end_are_counted_each(dtype):
    sizes = np.array([1, 3, 70_000, 2, *[5] * 600])
    with np.errstate(all="ignore"):
        values = odd_numbers(int(sizes.sum())).astype(dtype)
    expected = np.stack([counted(part) for part in np.split(values, np.cumsum(sizes)[:-1])])
    np.testing.assert_array_equal(count_each(values, sizes), expected)


def test_stored_distributions_come_back():
    rows = [counted(odd_numbers(num)) for num in (0, 1, 500)] + [counted(np.array(DELICATE)), counted(np.zeros(7))]
    rows.append(np.full(NUM_BINS, 2**62))
    counts = np.stack(rows)
    np.testing.assert_array_equal(decode(encode(counts)), counts)
    assert encode(counts[:0]) == []


def test_a_stored_distribution_takes_a_few_dozen_bytes():
    weights = np.random.default_rng(0).standard_normal(1 << 20) * 0.02
    (stored,) = encode(count_bins(weights.astype(np.float32))[None])
    assert len(stored) < 120


@pytest.mark.parametrize(
    "damaged", [b"", b"\x00", b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x80", b"\x00\x00\x00\x00\xff\x7f\x01"]
)
def test_damaged_bytes_are_refused(damaged):
    with pytest.raises(ValueError, match="distribution"):
        decode([damaged])


def test_no_stored_count_is_larger_than_64_bits():
    with pytest.raises(ValueError, match="impossible"):
        decode([b"\x00" * 5 + b"\xff" * 12 + b"\x01"])


def test_parts_add_up_to_the_whole():
    values = odd_numbers(1000)
    parts = encode(np.stack([count_bins(part) for part in np.split(values, 4)]))
    merged = merge_bins(parts, np.array([0, 0, 1, 1]), 2)
    np.testing.assert_array_equal(merged[0] + merged[1], counted(values))


def test_a_row_that_is_merged_with_one_without_a_distribution_has_none():
    table = BinTable({0: counted(np.ones(3)), 1: counted(np.ones(4)), 2: counted(np.ones(5))})
    assert table.stored([7, 8]) is None
    stored = table.stored([0, 1, 2, 7], np.array([0, 0, 1, 1]))
    assert stored is not None
    assert stored[1] == b""
    assert by_cell(decode(stored[:1])).sum() == 7


def test_there_is_a_cell_for_each_power_of_two_and_split():
    assert NUM_CELLS == 129 + 1 + 3
