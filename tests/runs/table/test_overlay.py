"""One number of many runs: lines, groups with mean and range, the extremes of very many."""

import numpy as np
import pytest

import vario
from sweep import RATES
from vario.core.errors import ConfigError
from vario.runs.run import list_runs
from vario.runs.table.columns import Columns
from vario.runs.table.overlay import read_overlay
from vario.runs.table.summary import read_summary


@pytest.fixture(scope="module")
def runs(sweep):
    return [read_summary(run, run.name) for run in list_runs(sweep)]


@pytest.fixture
def opened(sweep):
    return lambda run: vario.open_run(sweep / run.run)


def values(run, name="val_loss"):
    return run.series(name, "scalar").values


def test_a_few_runs_are_a_line_each(runs, opened):
    found = read_overlay(runs[:3], opened, "val_loss")
    assert [line.run for line in found.lines] == [run.run for run in runs[:3]]
    for line, run in zip(found.lines, runs, strict=False):
        np.testing.assert_array_equal(line.value, values(opened(run)))
        np.testing.assert_array_equal(line.x, opened(run).series("val_loss", "scalar").steps)
        assert line.best == values(opened(run)).min()
    assert found.text == ""


def test_a_group_is_its_mean_and_its_range(runs, opened):
    found = read_overlay(runs, opened, "val_loss", by=Columns(runs).find("lr"))
    assert [line.label for line in found.lines] == [f"lr {lr:.6g}" for lr in RATES]
    for line, lr in zip(found.lines, RATES, strict=True):
        inside = np.array([values(opened(run)) for run in runs if run.brief.params["lr"] == lr])
        np.testing.assert_allclose(line.value, inside.mean(axis=0))
        np.testing.assert_allclose(line.low, inside.min(axis=0))
        np.testing.assert_allclose(line.high, inside.max(axis=0))
        assert line.num_runs == 6


def test_many_runs_are_a_range_and_the_best_of_them_and_it_says_so(runs, opened):
    found = read_overlay(runs, opened, "accuracy")
    every = np.array([values(opened(run), "accuracy") for run in runs])
    whole, *best = found.lines
    np.testing.assert_allclose(whole.value, np.median(every, axis=0))
    np.testing.assert_allclose((whole.low, whole.high), (every.min(axis=0), every.max(axis=0)))
    assert [line.best for line in best] == sorted(every.max(axis=1), reverse=True)[:5]
    assert "30 runs: the band is their range" in found.text


def test_best_so_far_and_other_axes(runs, opened):
    run = opened(runs[0])
    (line,) = read_overlay(runs[:1], opened, "loss", is_best_so_far=True).lines
    np.testing.assert_array_equal(line.value, np.minimum.accumulate(values(run, "loss")))
    (line,) = read_overlay(runs[:1], opened, "val_loss", "epoch").lines
    np.testing.assert_array_equal(line.x, values(run, "epoch"))
    (line,) = read_overlay(runs[:1], opened, "val_loss", "time").lines
    assert (np.diff(line.x) > 0).all()
    assert 0 < line.x[-1] < 60


def test_a_number_that_some_lack_is_said_and_one_that_all_lack_refused(runs, opened):
    with pytest.raises(ConfigError, match=r"none of 30 runs has logged 'val_los'. Did you mean 'val_loss'"):
        read_overlay(runs, opened, "val_los")
    assert read_overlay([], opened, "val_loss").lines == ()
