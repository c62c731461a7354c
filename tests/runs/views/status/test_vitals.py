"""How far a run is and its vital signs, from what it logged."""

import numpy as np
import pytest

import made_runs
import vario
from vario.runs.views.status.brief import read_brief
from vario.runs.views.status.vitals import SPARK_POINTS, read_vitals, spark_of


def written(path, numbers, steps=40, close="finished", seconds=2.0):
    """A run whose steps end every two seconds; `numbers(step)` are logged."""
    records = [made_runs.record(step, time=100 + seconds * step, **numbers(step)) for step in range(steps)]
    made_runs.write_run(path, records, close=close)
    return vario.open_run(path)


def test_a_run_that_trains_has_a_time_to_go(tmp_path):
    run = written(tmp_path / "run", lambda step: {"loss": 1.0, "step_seconds": 0.5, "total_steps": 100.0}, close=None)
    for pace in (read_vitals(run).pace, read_brief(run).pace):
        assert (pace.step, pace.total_steps, pace.progress) == (39, 100, 0.4)
        assert pace.steps_per_second == 0.5  # steps over time, whatever step_seconds says
        assert pace.eta_seconds == 30.0


def test_past_its_announced_end_a_run_has_no_time_to_go(tmp_path):
    run = written(tmp_path / "run", lambda step: {"loss": 1.0, "step_seconds": 0.5, "total_steps": 39.0}, close=None)
    for pace in (read_vitals(run).pace, read_brief(run).pace):
        assert (pace.step, pace.total_steps, pace.progress, pace.eta_seconds) == (39, 39, 1.0, None)


def test_without_step_times_the_rows_tell_the_pace(tmp_path):
    run = written(tmp_path / "run", lambda step: {"train/loss": 1.0})
    found = read_vitals(run)
    assert found.pace.steps_per_second == 0.5
    assert found.pace.eta_seconds is None
    assert found.loss.target == "train/loss"


def test_the_vital_signs_come_in_their_order_whatever_was_logged_first(tmp_path):
    logged = {
        "eval_accuracy": 0.5,
        "device_memory_peak_bytes/0": 7.0,
        "lr": 0.1,
        "my_loss": 3.0,
        "tokens_per_second": 9,
    }
    found = read_vitals(written(tmp_path / "run", lambda step: logged)).vitals
    assert [(vital.name, vital.target, vital.unit) for vital in found] == [
        ("loss", "my_loss", ""),
        ("learning rate", "lr", ""),
        ("tokens", "tokens_per_second", "/s"),
        ("memory", "device_memory_peak_bytes/0", "B"),
        ("eval_accuracy", "eval_accuracy", ""),
    ]
    assert [vital.value for vital in found] == [3.0, 0.1, 9.0, 7.0, 0.5]


def test_nonsense_about_the_number_of_steps_is_no_progress(tmp_path):
    for number, told in enumerate((float("nan"), 0.0, -3.0, float("inf"))):
        run = written(tmp_path / str(number), lambda step, told=told: {"loss": 1.0, "total_steps": told}, steps=3)
        assert read_vitals(run).pace.progress is None
        assert read_brief(run).pace.progress is None
    beyond = written(tmp_path / "beyond", lambda step: {"loss": 1.0, "total_steps": 2.0}, steps=3)
    assert read_vitals(beyond).pace.progress == 1.0


def test_a_run_without_numbers_has_no_vital_signs(tmp_path):
    made_runs.write_run(tmp_path / "run", [])
    run = vario.open_run(tmp_path / "run")
    assert read_vitals(run).vitals == ()
    assert read_brief(run).loss is None
    assert read_brief(run).pace.step is None


@pytest.mark.parametrize("at", [0, 777, 1234, 9999])
@pytest.mark.parametrize("spike", [50.0, -50.0])
def test_few_points_keep_a_spike(at, spike):
    values = np.random.default_rng(0).normal(1.0, 0.1, 10_000)
    values[at] = spike
    found = spark_of(values)
    assert len(found) == SPARK_POINTS
    assert spike in found
    others = [value for value in found if value != spike]
    assert max(abs(value - 1.0) for value in others) < 0.2, "noise is averaged away"


def test_few_points_keep_a_nan_and_short_series_as_they_are():
    values = np.linspace(0, 1, 1000)
    values[500] = np.nan
    assert sum(np.isnan(spark_of(values))) == 1
    assert spark_of(np.array([1.0, 3.0, 2.0])) == (1.0, 3.0, 2.0)
    assert spark_of(np.zeros(0)) == ()


def test_the_line_of_a_list_says_what_went_wrong(tmp_path):
    store = made_runs.Store()
    store.open(made_runs.header(tmp_path / "run"))
    store.write(made_runs.record(0, loss=float("nan")))
    store.close("crashed", "ValueError: no more data")
    found = read_brief(vario.open_run(tmp_path / "run"))
    assert (found.state, found.error) == ("crashed", "ValueError: no more data")
    assert np.isnan(found.loss)
