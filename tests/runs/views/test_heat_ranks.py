import numpy as np
import pytest

from rollup_runs import TARGETS, by_numpy, random_frame, small_rollups, write_rolled_up
from thorough import cases
from vario.core.records import INFS, NANS
from vario.runs.run import open_run
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import read_heat

NUM_STEPS = 300
STATISTICS = ("norm", "rms", "mean", "min", "max", "absmax", "zeros", "nans", "count")


def structure(rank, shared):
    """Parameters that two ranks hold alike, or of which each has its half."""
    alike = [0, 1] if shared else [rank]
    box = {} if shared else {"box": [[8 * rank, 8 * rank + 8]]}
    parameters = [{"name": name, "shape": [16], "replicas": 0, **box} for name in TARGETS]
    return {"modules": [], "parameters": parameters, "groups": [alike]}


@pytest.fixture(scope="module", params=["halves", "replicas"])
def two_ranks(request, tmp_path_factory):
    """A run of two ranks with rollups, whose parts end at different steps."""
    path = tmp_path_factory.mktemp("ranks") / "run"
    shared = request.param == "replicas"
    for rank in (0, 1):
        write_rolled_up(
            path,
            range(NUM_STEPS),
            store=small_rollups(part_steps=10 + 3 * rank),
            rank=rank,
            world_size=2,
            structure=structure(rank, shared),
            frames=lambda step, rank=rank: [random_frame(step, 0 if shared else rank)],
        )
    return open_run(path), shared


def clean(path, steps, shares):
    """A run of two ranks without anything that is not finite."""
    for rank in (0, 1):

        def frames(step, rank=rank):
            frame = random_frame(step, rank)
            frame.summaries[:, :] = np.nan_to_num(frame.summaries, nan=0.5, posinf=0.5, neginf=0.5)
            frame.summaries[:, [NANS, INFS]] = 0
            return [frame]

        write_rolled_up(path, steps, rank=rank, world_size=2, structure=structure(rank, not shares), frames=frames)
    return open_run(path)


@pytest.mark.parametrize("statistic", cases(STATISTICS, ["norm", "mean", "max", "nans"]))
def test_all_ranks_together_are_what_their_series_are(two_ranks, statistic):
    run, _ = two_ranks
    heat = read_heat(run, "gradient", statistic, columns=1000)
    assert not heat.is_rollup
    assert heat.targets == TARGETS
    for row, target in enumerate(TARGETS):
        series = run.series(target, "gradient", statistic)
        expected = np.where(np.isfinite(series.values), series.values, np.nan).astype(np.float32)
        np.testing.assert_array_equal(heat.values[row], expected)
        curve = read_curve(run, target, "gradient", statistic)
        np.testing.assert_array_equal(curve.last, series.values)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_is_what_its_series_is(two_ranks, rank):
    run, _ = two_ranks
    for columns in (8, 1000):
        heat = read_heat(run, "gradient", "mean", rank=rank, columns=columns)
        for row, target in enumerate(TARGETS):
            series = run.series(target, "gradient", "mean", rank=rank)
            for at, (first, last) in enumerate(zip(heat.first, heat.last, strict=True)):
                values = series.values[(series.steps >= first) & (series.steps <= last)]
                finite = values[np.isfinite(values)]
                assert len(finite) == 0 or abs(heat.values[row, at]) == np.float32(np.abs(finite).max())


@pytest.mark.parametrize("statistic", cases(STATISTICS, ["norm", "mean", "max", "nans"]))
def test_rollups_of_replicas_are_exact_and_of_shares_enclose_the_truth(two_ranks, statistic):
    run, shared = two_ranks
    for target in TARGETS:
        curve = read_curve(run, target, "gradient", statistic, points=9)
        assert not curve.is_whole
        series = run.series(target, "gradient", statistic)
        begin = 0
        for place, end in enumerate(curve.steps.tolist()):
            # Ranks whose buckets end at different steps are gathered within one bucket of each other.
            slack = 0 if shared else 20
            inner = series.values[(series.steps >= begin + slack) & (series.steps <= end - slack)]
            finite = inner[np.isfinite(inner)]
            if len(finite) and statistic != "std":
                assert curve.low[place] <= finite.min() * (1 + 1e-12 * np.sign(finite.min()))
                assert curve.high[place] >= finite.max() * (1 - 1e-12 * np.sign(finite.max()))
            if shared and len(finite):
                assert (curve.low[place], curve.high[place]) == (finite.min(), finite.max())
            begin = end + 1


def test_a_nan_on_any_rank_is_shown_whatever_is_made_of_the_ranks(two_ranks):
    run, shared = two_ranks
    ranks = [0, 0] if shared else [0, 1]
    rows = [np.stack([random_frame(step, rank).summaries for step in range(NUM_STEPS)], axis=1) for rank in ranks]
    bad = np.logical_or.reduce([(row[:, :, NANS] > 0) | (row[:, :, INFS] > 0) for row in rows])
    for rank in ("all", "min", "mean", "max", "spread"):
        for columns in (8, 1000):
            heat = read_heat(run, "gradient", "norm", rank=rank, columns=columns)
            for row, step in np.argwhere(bad):
                at = np.flatnonzero((heat.first <= step) & (step <= heat.last))
                # Of ranks whose buckets end at different steps, the next column may tell it.
                near = heat.bad[row, max(0, at[0] - 1) : at[0] + 2] if heat.is_rollup else heat.bad[row, at]
                assert near.any()


@pytest.mark.parametrize("fold", ["min", "mean", "max", "spread"])
def test_the_numbers_of_each_rank_are_folded(tmp_path, fold):
    run = clean(tmp_path / "run", range(100), shares=True)
    values = [[run.series(target, "gradient", rank=rank).values for target in TARGETS] for rank in (0, 1)]
    how = {"min": np.min, "mean": np.mean, "max": np.max, "spread": np.ptp}[fold]
    expected = how(np.array(values), axis=0)
    heat = read_heat(run, "gradient", rank=fold)
    np.testing.assert_allclose(heat.values, expected, rtol=1e-6)
    curve = read_curve(run, TARGETS[3], "gradient", rank=fold)
    np.testing.assert_allclose(curve.last, expected[3])
    small = read_heat(run, "gradient", rank=fold, columns=4)
    each = [read_heat(run, "gradient", rank=rank, columns=4).values for rank in (0, 1)]
    assert small.is_rollup
    np.testing.assert_allclose(small.values, how(np.array(each), axis=0), rtol=1e-6)


def test_rollups_of_shares_add_up_to_the_whole(tmp_path):
    run = clean(tmp_path / "run", range(100), shares=True)
    heat = read_heat(run, "gradient", "norm", columns=4)
    each = [read_heat(run, "gradient", "norm", rank=rank, columns=4).values for rank in (0, 1)]
    np.testing.assert_allclose(heat.values, np.sqrt(np.square(each[0]) + np.square(each[1])), rtol=1e-6)
    assert (read_heat(run, "gradient", "count", columns=4).values == 16).all()


def test_what_one_rank_left_to_another_is_read_there(tmp_path):
    for rank in (0, 1):
        mine = TARGETS[:2] if rank == 0 else TARGETS[2:]
        write_rolled_up(
            tmp_path / "run",
            range(100),
            rank=rank,
            world_size=2,
            structure=structure(rank, shared=True),
            frames=lambda step, mine=mine: [random_frame(step, targets=mine)],
        )
    run = open_run(tmp_path / "run")
    for columns in (4, 1000):
        whole = read_heat(run, "gradient", columns=columns)
        one = read_heat(run, "gradient", rank=1, columns=columns)
        assert whole.targets == one.targets == TARGETS
        assert whole.has.all()
        assert one.has.all()
        np.testing.assert_array_equal(whole.values, one.values)
    expected = by_numpy([random_frame(step, targets=TARGETS[:2]).summaries[1] for step in range(100)], "norm")
    np.testing.assert_array_equal(read_curve(run, TARGETS[1], "gradient", rank=1).last, expected)


def test_plain_numbers_of_ranks_are_averaged(tmp_path):
    run = clean(tmp_path / "run", range(100), shares=True)
    series = run.series("lr", "scalar")
    np.testing.assert_array_equal(read_curve(run, "lr", "scalar").last, series.values)
    heat = read_heat(run, "scalar", columns=4)
    assert heat.is_rollup
    np.testing.assert_allclose(heat.values[heat.targets.index("lr")], heat.last / 7, rtol=1e-6)
