"""What a lower precision would lose, from distributions: the answers of numpy on the elements themselves."""

import math

import numpy as np
import pytest
import torch

from bin_oracle import odd_numbers
from vario.backends.bin_counts import count_bins
from vario.core.elements.precision import (
    FORMATS,
    Bounds,
    best_scales,
    largest,
    loss,
    num_nonzero,
    outlier_share,
    peak,
    quantile,
    share_above,
    share_below,
)

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def normal(num=20_000, size=0.02, seed=0):
    return np.random.default_rng(seed).standard_normal(num) * size


def magnitudes(values):
    return np.abs(values[np.isfinite(values) & (values != 0)])


def contains(bounds: Bounds, value):
    return bool((bounds.low <= value + 1e-12).all() and (bounds.high >= value - 1e-12).all())


@pytest.mark.parametrize("name", FORMATS)
def test_the_limits_of_formats_are_those_of_torch(name):
    to, found = FORMATS[name], torch.finfo(DTYPES[name])
    assert to.largest == found.max
    assert math.ldexp(1.0, to.normal) == found.tiny
    assert math.ldexp(1.0, to.subnormal) == found.smallest_normal * found.eps


@pytest.mark.parametrize("name", ["fp16", "e4m3", "e5m2"])
@pytest.mark.parametrize("scale", [0, 3, -5, 20])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e3])
def test_shares_of_small_numbers_are_exact_under_any_power_of_two(name, scale, size):
    values, to = normal(size=size), FORMATS[name]
    scaled = np.abs(values) * 2.0**scale
    found = loss(count_bins(values)[None], to, scale)
    assert found.flushed.is_exact
    assert found.subnormal.is_exact
    assert found.flushed.low[0] == (scaled < to.flushed_below).mean()
    assert found.subnormal.low[0] == (scaled < 2.0**to.normal).mean()
    assert contains(found.overflow, (scaled > to.largest).mean())
    assert contains(found.lost, ((scaled < to.flushed_below) | (scaled > to.largest)).mean())


@pytest.mark.parametrize("name", ["fp16", "e4m3", "e5m2"])
def test_what_becomes_zero_is_what_a_cast_turns_to_zero(name):
    values = normal(size=2.0**-12)
    cast = torch.from_numpy(values).float().to(DTYPES[name]).float().numpy()
    found = loss(count_bins(values.astype(np.float32))[None], FORMATS[name])
    assert found.flushed.low[0] == (cast == 0).mean()


@pytest.mark.parametrize("name", ["fp16", "e4m3", "e5m2"])
def test_overflow_without_a_scale_is_exact(name):
    to = FORMATS[name]
    values = np.concatenate([normal(size=to.largest), [to.largest, -to.largest, np.nextafter(to.largest, np.inf)]])
    found = loss(count_bins(values)[None], to).overflow
    assert found.is_exact
    assert found.low[0] == (np.abs(values) > to.largest).mean()


def test_overflow_under_a_scale_is_a_bound_that_says_so():
    values = normal(size=100.0)
    found = loss(count_bins(values)[None], FORMATS["e4m3"], 1).overflow
    assert not found.is_exact
    assert contains(found, (np.abs(values * 2) > 448).mean())


def test_what_is_below_the_bins_is_a_bound():
    found = loss(count_bins(np.array([2.0**-70, 1.0]))[None], FORMATS["bf16"])
    assert (found.subnormal.low[0], found.subnormal.high[0]) == (0.0, 0.5)


def test_zeros_and_infinite_elements_are_no_part_of_shares():
    values = np.array([0.0, 0.0, np.nan, np.inf, 1e-9, 1.0])
    counts = count_bins(values)[None]
    assert num_nonzero(counts)[0] == 2
    assert loss(counts, FORMATS["fp16"]).flushed.low[0] == 0.5
    assert loss(counts, FORMATS["fp16"]).overflow.high[0] == 0.0


def test_a_tensor_of_zeros_has_no_shares():
    found = loss(count_bins(np.zeros(4))[None], FORMATS["fp16"])
    assert np.isnan(found.flushed.low[0])
    assert best_scales(count_bins(np.zeros(4))[None], FORMATS["fp16"])[0] == 0


@pytest.mark.parametrize("name", ["fp16", "e4m3", "e5m2"])
@pytest.mark.parametrize("size", [1e-9, 1e-4, 1.0, 1e6])
def test_no_power_of_two_loses_less_than_the_best_scale(name, size):
    values, to = normal(2000, size), FORMATS[name]
    counts = count_bins(values)[None]
    best = int(best_scales(counts, to)[0])

    def lost(scale):
        scaled = np.abs(values) * 2.0**scale
        return (scaled < to.flushed_below).mean() + (scaled > to.largest).mean()

    assert lost(best) <= min(lost(scale) for scale in range(-64, 65)) + 1e-12
    assert (np.abs(values) * 2.0**best).max() <= to.largest


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999, 1.0])
def test_quantiles_are_known_within_a_factor_of_two(share):
    values = np.concatenate([normal(999), [0.0] * 40, [np.inf, np.nan]])
    finite = np.abs(values[np.isfinite(values)])
    found = quantile(count_bins(values)[None], share)
    expected = np.quantile(finite, share, method="inverted_cdf")
    assert contains(found, expected)
    assert found.high[0] <= 2 * found.low[0]


def test_the_largest_is_within_its_cell():
    values = normal()
    assert contains(largest(count_bins(values)[None]), np.abs(values).max())
    assert np.isnan(largest(count_bins(np.array([np.nan]))[None]).low[0])


def test_peak_and_outliers():
    values = np.concatenate([normal(), [50.0, -60.0], np.zeros(100)])
    nonzero = magnitudes(values)
    counts = count_bins(values)[None]
    assert contains(peak(counts), nonzero.max() / np.median(nonzero))
    exact = peak(counts, np.array([60.0]))
    assert exact.high[0] / exact.low[0] == 2
    assert contains(exact, 60.0 / np.median(nonzero))
    assert contains(outlier_share(counts, 64.0), (nonzero > 64 * np.median(nonzero)).mean())


def test_several_tensors_at_once_are_as_one_by_one():
    rows = [count_bins(odd_numbers(500, seed)) for seed in range(4)]
    together = loss(np.stack(rows), FORMATS["fp16"], 5)
    for at, row in enumerate(rows):
        assert together.flushed.low[at] == loss(row[None], FORMATS["fp16"], 5).flushed.low[0]
    together_scales = best_scales(np.stack(rows), FORMATS["e4m3"])
    assert [int(best_scales(row[None], FORMATS["e4m3"])[0]) for row in rows] == together_scales.tolist()


@pytest.mark.parametrize("edge", [2.0**-64, 1.0, 448.0, 449.0, 65_504.0, 2.0**64, 1e30])
def test_shares_below_and_above_any_number(edge):
    values = np.concatenate([odd_numbers(3000), [edge, -edge]])
    nonzero = magnitudes(values)
    counts = count_bins(values)[None]
    assert contains(share_below(counts, edge), (nonzero < edge).mean())
    assert contains(share_above(counts, edge), (nonzero > edge).mean())
