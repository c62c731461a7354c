import subprocess
import sys

import numpy as np
import pytest

from rollup_runs import STATISTICS, TARGETS, by_numpy, random_frame, write_rolled_up
from vario.core.errors import ConfigError
from vario.core.records import INFS, NANS
from vario.runs.run import open_run
from vario.runs.views.curves import read_curve

NUM_STEPS = 700


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A run whose rollups have several levels, and the rows behind it."""
    path = tmp_path_factory.mktemp("curves") / "run"
    write_rolled_up(path, range(NUM_STEPS))
    return open_run(path), np.stack([random_frame(step).summaries for step in range(NUM_STEPS)], axis=1)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("points", [7, 30, 120, 1000])
def test_every_bucket_has_the_lowest_highest_and_last_of_its_rows(long_run, statistic, points):
    run, rows = long_run
    for at in (0, 3):
        curve = read_curve(run, TARGETS[at], "gradient", statistic, points=points)
        assert len(curve) <= points
        assert curve.is_whole == (points == 1000)
        assert curve.steps[-1] == NUM_STEPS - 1
        begin = 0
        for place, end in enumerate(curve.steps.tolist()):
            cell = rows[at, begin : end + 1]
            values = by_numpy(cell, statistic)
            finite = values[np.isfinite(values)]
            expected = [finite.min(), finite.max()] if len(finite) else [np.nan, np.nan]
            found = [curve.low[place], curve.high[place], curve.last[place]]
            np.testing.assert_array_equal(found, [*expected, values[-1]])
            assert curve.bad[place] == ((cell[:, NANS] > 0) | (cell[:, INFS] > 0)).any()
            begin = end + 1


def test_a_whole_curve_is_the_series(long_run):
    run, _ = long_run
    series = run.series(TARGETS[2], "gradient", "std")
    curve = read_curve(run, TARGETS[2], "gradient", "std")
    np.testing.assert_array_equal(curve.steps, series.steps)
    np.testing.assert_array_equal(curve.last, series.values)


@pytest.mark.parametrize("points", [5, 1000])
def test_plain_numbers_are_curves_and_tell_when_each_step_ended(long_run, points):
    run, _ = long_run
    curve = read_curve(run, "loss", "scalar", points=points)
    begin = 0
    for place, end in enumerate(curve.steps.tolist()):
        steps = np.arange(begin, end + 1)
        is_bad = steps % 97 == 5
        assert curve.bad[place] == is_bad.any()
        if not is_bad.all():
            values = np.sin(steps[~is_bad])
            assert (curve.low[place], curve.high[place]) == (values.min(), values.max())
        begin = end + 1
    np.testing.assert_array_equal(curve.times, curve.steps.astype(float))


def test_a_part_of_a_long_curve_has_every_point(long_run):
    run, rows = long_run
    curve = read_curve(run, TARGETS[1], "gradient", first=300, last=340, points=200)
    assert curve.is_whole
    assert curve.steps.tolist() == list(range(300, 341))
    np.testing.assert_array_equal(curve.last, by_numpy(rows[1, 300:341], "norm"))


def test_a_known_name_without_points_in_a_range_is_an_empty_curve(long_run):
    run, _ = long_run
    curve = read_curve(run, TARGETS[1], "gradient", first=5000)
    assert len(curve) == 0
    assert curve.target == TARGETS[1]


def test_wrong_names_are_refused_with_the_nearest_right_one(long_run):
    run, _ = long_run
    with pytest.raises(ConfigError, match=r"Did you mean 'layers\.2\.weight'"):
        read_curve(run, "layers.2.wieght", "gradient")
    with pytest.raises(ConfigError, match="Did you mean 'loss'"):
        read_curve(run, "los", "scalar")
    with pytest.raises(ConfigError, match="Did you mean 'gradient'"):
        read_curve(run, TARGETS[0], "gradent")
    with pytest.raises(ConfigError, match="statistic"):
        read_curve(run, "loss", "scalar", "norm")


def test_the_output_of_a_module_needs_no_side(tmp_path):
    def frames(step):
        return [random_frame(step, targets=("mlp:input", "mlp:output"), quantity="activation")]

    write_rolled_up(tmp_path / "run", range(100), frames=frames)
    run = open_run(tmp_path / "run")
    for points in (5, 1000):
        assert read_curve(run, "mlp", "activation", points=points).target == "mlp:output"


def test_a_statistic_that_was_not_recorded_is_refused(tmp_path):
    write_rolled_up(tmp_path / "run", range(10), config={"statistics": ["norm"], "eps": 1e-8})
    with pytest.raises(ConfigError, match="'absmax' needs min and max"):
        read_curve(open_run(tmp_path / "run"), TARGETS[0], "gradient", "absmax")


def test_a_curve_of_a_run_that_is_being_written_ends_at_its_newest_step(tmp_path):
    store = write_rolled_up(tmp_path / "run", range(233), close=None)
    run = open_run(tmp_path / "run")
    for points in (6, 1000):
        curve = read_curve(run, TARGETS[0], "gradient", points=points)
        assert curve.steps[-1] == 232
        values = by_numpy([random_frame(step).summaries[0] for step in range(233)], "norm")
        assert np.nanmax(curve.high) == values[np.isfinite(values)].max()
    store.close("finished", None)


def test_looking_at_a_run_imports_neither_pandas_nor_a_framework(tmp_path):
    write_rolled_up(tmp_path / "run", range(100))
    code = f"""
import sys
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import read_heat
from vario.runs.run import open_run
run = open_run({str(tmp_path / "run")!r})
read_heat(run, "gradient", columns=5), read_heat(run, "gradient"), read_heat(run, "scalar")
read_curve(run, {TARGETS[0]!r}, "gradient", points=5), read_curve(run, "loss", "scalar")
print(sorted({{"pandas", "torch", "matplotlib"}} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
