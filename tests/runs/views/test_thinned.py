"""Curves, series and frames of runs whose old rows were thinned, against the same runs with all rows."""

import numpy as np
import pytest

from made_runs import STATISTICS, header, record
from rollup_runs import TARGETS, by_numpy, random_frame, small_rollups
from vario.core.errors import ConfigError
from vario.runs.findings.check import check
from vario.runs.run import open_run
from vario.runs.views.curves import read_curve
from vario.store.compacting import compact_run

TIERS = {"steps": 60, "bytes": 0, "around": 2, "every": 50}
NUM_STEPS = 400


def write(path, rank=0, world_size=1, seeds=(0,), structure=None):
    store = small_rollups()
    store.open(
        header(
            path,
            rank=rank,
            world_size=world_size,
            config={"statistics": STATISTICS, "quantities": ["gradient"]},
            structure=structure or {"modules": [], "parameters": []},
        )
    )
    for step in range(NUM_STEPS):
        store.write(record(step, random_frame(step, rank), loss=1.0))
    store.close("finished", None)


@pytest.fixture(scope="module")
def thinned(tmp_path_factory):
    place = tmp_path_factory.mktemp("thinned")
    for name in ("run", "plain"):
        write(place / name)
    compact_run(place / "run", TIERS)
    return place


def norms(steps, target):
    at = TARGETS.index(target)
    return by_numpy([random_frame(step).summaries[at] for step in steps], "norm")


@pytest.mark.parametrize("points", [None, 1000, 30])
def test_a_curve_has_every_extreme_and_says_where_it_is_downsampled(thinned, points):
    target = TARGETS[1]
    curve = read_curve(open_run(thinned / "run"), target, "gradient", "norm", points=points)
    ((_, last),) = curve.thinned
    assert not curve.is_whole
    assert (np.diff(curve.steps) > 0).all()
    values = norms(range(NUM_STEPS), target)
    finite = values[np.isfinite(values)]
    assert (np.nanmin(curve.low), np.nanmax(curve.high)) == (finite.min(), finite.max())
    if points is None:
        at = np.searchsorted(curve.steps, np.arange(last + 1, NUM_STEPS))
        assert curve.steps[at].tolist() == list(range(last + 1, NUM_STEPS))
        np.testing.assert_array_equal(curve.last[at], norms(range(last + 1, NUM_STEPS), target))
        bad = set(np.flatnonzero(~np.isfinite(values)))
        assert bad <= set(curve.steps[curve.bad].tolist())


def test_a_curve_of_steps_that_are_all_there_is_whole(thinned):
    curve = read_curve(open_run(thinned / "run"), TARGETS[1], "gradient", "norm", first=NUM_STEPS - 20)
    assert curve.is_whole
    assert curve.thinned == ()
    np.testing.assert_array_equal(curve.last, norms(range(NUM_STEPS - 20, NUM_STEPS), TARGETS[1]))


def test_a_series_has_the_rows_that_exist_and_says_so(thinned):
    series = open_run(thinned / "run").series(TARGETS[0], "gradient", "norm")
    np.testing.assert_array_equal(series.values, norms(series.steps.tolist(), TARGETS[0]))
    assert len(series) < NUM_STEPS
    ((first, last),) = series.thinned
    assert f"gradient: downsampled at steps {first} to {last}" in series.note
    assert open_run(thinned / "plain").series(TARGETS[0], "gradient", "norm").note == ""


def test_sql_tells_what_is_downsampled(thinned):
    run = open_run(thinned / "run")
    (row,) = run.sql("select * from thinned").to_pylist()
    assert (row["quantity"], (row["first_step"], row["last_step"])) == ("gradient", run.thinned("gradient")[0])
    assert run.sql("select count(*) as n from gradient").to_pylist() == [{"n": run.to_arrow("gradient").num_rows}]


def test_a_replay_says_what_it_did_not_see(thinned):
    assert "gradient: downsampled at steps 0 to" in check(open_run(thinned / "run"), replay=True).thinned
    assert check(open_run(thinned / "plain"), replay=True).thinned == ""


def test_a_sum_over_ranks_leaves_out_steps_of_which_a_rank_has_dropped_its_share(tmp_path):
    for rank in range(2):
        shards = [
            {"name": name, "shape": [16], "dtype": "float32", "range": [8 * rank, 8 * rank + 8]} for name in TARGETS
        ]
        structure = {"modules": [], "parameters": shards}
        for name in ("run", "plain"):
            write(tmp_path / name, rank, 2, structure=structure)
    # An incident that only rank 1 has seen keeps rows there alone.
    (tmp_path / "run" / "rank1" / "incidents.jsonl").write_text('{"id": "step-123", "step": 123, "severity": "page"}\n')
    compact_run(tmp_path / "run", TIERS)
    run, plain = open_run(tmp_path / "run"), open_run(tmp_path / "plain")
    assert 123 in run.series(TARGETS[0], "gradient", "norm", rank=1).steps
    found = run.series(TARGETS[0], "gradient", "norm")
    full = plain.series(TARGETS[0], "gradient", "norm")
    assert 123 not in found.steps[np.isfinite(found.values)]
    at = np.searchsorted(full.steps, found.steps)
    finite = np.isfinite(found.values)
    np.testing.assert_array_equal(found.values[finite], full.values[at][finite])
    assert {50, 100} <= set(found.steps.tolist())
    with pytest.raises(ConfigError, match="rows of gradient at step 123 were dropped on some rank"):
        run.frame(123, "gradient", "all")
    curve = read_curve(run, TARGETS[0], "gradient", "norm", points=None)
    assert curve.thinned
    newest = curve.steps > curve.thinned[-1][1]
    np.testing.assert_array_equal(curve.last[newest], full.values[np.searchsorted(full.steps, curve.steps[newest])])
