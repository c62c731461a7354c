import numpy as np

from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, empty_table, merge


def row(**columns):
    return np.array([columns.get(name, 0.0) for name in COLUMNS])


ONE = row(count=3, sum=6.0, sum_squares=14.0, min=1.0, max=3.0)
TWO = row(count=2, sum=-3.0, sum_squares=5.0, min=-2.0, max=-1.0, zeros=1)


def test_sums_add_and_extremes_fold():
    merged = merge(np.stack([ONE, TWO]), np.array([0, 0]), 1)[0]
    assert (merged[COUNT], merged[SUM], merged[SUM_SQUARES]) == (5, 3.0, 19.0)
    assert (merged[MIN], merged[MAX]) == (-2.0, 3.0)


def test_groups_are_kept_apart():
    merged = merge(np.stack([ONE, TWO, ONE]), np.array([0, 1, 0]), 2)
    assert merged[:, COUNT].tolist() == [6, 2]


def test_a_tensor_without_a_number_has_no_say_in_the_extremes():
    nothing = row(count=4, sum=np.nan, sum_squares=np.nan, min=np.nan, max=np.nan, nans=4)
    merged = merge(np.stack([nothing, ONE]), np.array([0, 0]), 1)[0]
    assert (merged[MIN], merged[MAX], merged[NANS]) == (1.0, 3.0, 4)
    assert np.isnan(merged[SUM])


def test_opposite_infinities_merge_without_a_warning():
    up, down = row(count=1, sum=np.inf, max=np.inf, infs=1), row(count=1, sum=-np.inf, min=-np.inf, infs=1)
    merged = merge(np.stack([up, down]), np.array([0, 0]), 1)[0]
    assert merged[INFS] == 2


def test_nothing_merged_is_the_empty_summary():
    merged = merge(np.zeros((0, len(COLUMNS))), np.zeros(0, dtype=np.int64), 2)
    np.testing.assert_array_equal(merged, empty_table(2))
