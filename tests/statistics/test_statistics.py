"""Every statistic, derived from Summaries, against numpy in float64 over the elements themselves."""

import numpy as np
import pytest

from vario.core.records import COLUMNS, merge_all
from vario.statistics import STATISTICS, columns_needed

EPS = 1e-8

DIRECT = {
    "norm": lambda x: np.sqrt(np.sum(np.square(x))),
    "rms": lambda x: np.sqrt(np.mean(np.square(x))),
    "mean": np.mean,
    "std": np.std,
    "min": np.nanmin,
    "max": np.nanmax,
    "absmax": lambda x: np.nanmax(np.abs(x)),
    "nans": lambda x: np.isnan(x).sum(),
    "infs": lambda x: np.isinf(x).sum(),
    "zeros": lambda x: (np.abs(x) < EPS).mean(),
    "count": np.size,
}


def summary(x):
    x = np.asarray(x, dtype=np.float64)
    return np.array(
        [
            [
                x.size,
                x.sum(),
                np.square(x).sum(),
                np.nanmin(x),
                np.nanmax(x),
                np.isnan(x).sum(),
                np.isinf(x).sum(),
                (np.abs(x) < EPS).sum(),
            ]
        ]
    )


TENSORS = {
    "normal": np.random.default_rng(0).standard_normal(1000),
    "far from zero": 1e4 + np.random.default_rng(1).standard_normal(1000),
    "sparse": np.where(np.arange(100) % 3 == 0, 0.0, 2.5),
    "one element": np.array([-3.0]),
    "constant": np.full(7, 0.1),
    "with a NaN": np.array([1.0, np.nan, -4.0]),
    "with an Inf": np.array([1.0, np.inf, -4.0]),
}


def test_every_statistic_has_a_direct_counterpart_here():
    assert set(STATISTICS.names()) == set(DIRECT)


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("name", sorted(DIRECT))
def test_a_statistic_equals_what_numpy_says_about_the_elements(name, tensor):
    x = TENSORS[tensor]
    with np.errstate(invalid="ignore"):
        expected = DIRECT[name](x)
        measured = STATISTICS.get(name)(summary(x))
    np.testing.assert_allclose(measured, [expected], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_a_statistic_of_merged_summaries_is_that_of_the_whole(name):
    whole = TENSORS["normal"]
    parts = np.concatenate([summary(part) for part in np.array_split(whole, 7)])
    measured = STATISTICS.get(name)(merge_all(parts))
    np.testing.assert_allclose(measured, [DIRECT[name](whole)], rtol=1e-9)


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_a_statistic_reads_only_the_columns_it_declares(name):
    whole = summary(TENSORS["normal"])
    needs = STATISTICS.get(name).needs
    for index, column in enumerate(COLUMNS):
        if column not in needs:
            whole[:, index] = np.nan
    np.testing.assert_allclose(STATISTICS.get(name)(whole), [DIRECT[name](TENSORS["normal"])], rtol=1e-6)


def test_an_empty_tensor_has_no_mean_and_no_warning():
    empty = np.array([[0, 0, 0, np.nan, np.nan, 0, 0, 0]], dtype=np.float64)
    assert np.isnan(STATISTICS.get("mean")(empty)).all()


def test_what_goes_bad_is_counted_whatever_is_chosen():
    assert {"nans", "infs", "count"} <= columns_needed([])
    assert "zeros" not in columns_needed(["norm"])


def test_every_statistic_says_what_it_is():
    for found in STATISTICS:
        assert found.part.doc.endswith(".")
