import threading

import numpy as np
import pytest

from made_runs import record, write_run
from rollup_runs import STATISTICS, TARGETS, by_numpy, random_frame, summary_of, write_rolled_up
from vario.core.errors import ConfigError
from vario.core.records import INFS, NANS, Frame
from vario.runs.run import open_run
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import read_heat

NUM_STEPS = 700


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A run whose rollups have several levels, and the rows behind it."""
    path = tmp_path_factory.mktemp("heat") / "run"
    write_rolled_up(path, range(NUM_STEPS))
    return open_run(path), np.stack([random_frame(step).summaries for step in range(NUM_STEPS)], axis=1)


def check_cells(heat, rows, statistic, recorded):
    """Every cell has the largest magnitude of the rows of its steps, and tells of everything bad among them."""
    row_of = {name: rows[at] for at, name in enumerate(TARGETS)}
    for at, (first, last) in enumerate(zip(heat.first, heat.last, strict=True)):
        inside = (recorded >= first) & (recorded <= last)
        for place, target in enumerate(heat.targets):
            cell = row_of[target][inside]
            values = by_numpy(cell, statistic)
            finite = values[np.isfinite(values)]
            assert heat.has[place, at] == inside.any()
            assert heat.bad[place, at] == ((cell[:, NANS] > 0) | (cell[:, INFS] > 0)).any()
            if len(finite):
                assert abs(heat.values[place, at]) == np.float32(np.abs(finite).max())
                assert heat.values[place, at] in finite.astype(np.float32)
            else:
                assert np.isnan(heat.values[place, at])


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("columns", [5, 40, 100])
def test_rollups_show_the_same_as_all_rows(long_run, statistic, columns):
    run, rows = long_run
    heat = read_heat(run, "gradient", statistic, columns=columns)
    assert heat.is_rollup
    assert len(heat.first) <= columns
    assert heat.targets == TARGETS
    assert (heat.first[1:] > heat.last[:-1]).all()
    assert (heat.first[0], heat.last[-1]) == (0, NUM_STEPS - 1)
    check_cells(heat, rows, statistic, np.arange(NUM_STEPS))


@pytest.mark.parametrize("statistic", STATISTICS)
def test_rows_themselves_show_the_same(long_run, statistic):
    run, rows = long_run
    heat = read_heat(run, "gradient", statistic, columns=1000)
    assert not heat.is_rollup
    assert len(heat.first) == NUM_STEPS
    check_cells(heat, rows, statistic, np.arange(NUM_STEPS))


@pytest.mark.parametrize(
    ("first", "last", "columns"), [(100, 300, 10), (333, 333, 10), (None, 57, 1000), (650, None, 3)]
)
def test_a_range_of_steps_has_all_its_steps_and_at_most_the_rest_of_a_bucket(long_run, first, last, columns):
    run, rows = long_run
    heat = read_heat(run, "gradient", "mean", first=first, last=last, columns=columns)
    check_cells(heat, rows, "mean", np.arange(NUM_STEPS))
    beyond = 64 if heat.is_rollup else 0
    assert (first or 0) - beyond <= heat.first[0] <= (first or 0)
    assert (
        (NUM_STEPS - 1 if last is None else last) <= heat.last[-1] <= (NUM_STEPS - 1 if last is None else last) + beyond
    )


def test_no_nan_is_lost_wherever_it_is(tmp_path):
    for place in (0, 39, 40, 119):
        path = tmp_path / str(place)

        def frames(step, place=place):
            frame = random_frame(step, seed=1)
            frame.summaries[:, [NANS, INFS]] = 0
            if step == place:
                frame.summaries[2, NANS] = 1
            return [frame]

        write_rolled_up(path, range(120), frames=frames)
        heat = read_heat(open_run(path), "gradient", columns=4)
        assert heat.is_rollup
        ((row, column),) = np.argwhere(heat.bad)
        assert heat.targets[row] == TARGETS[2]
        assert heat.first[column] <= place <= heat.last[column]


def test_a_run_that_is_being_written_shows_its_newest_step(tmp_path):
    store = write_rolled_up(tmp_path / "run", range(50), close=None)
    run = open_run(tmp_path / "run")
    for step in range(50, 300):
        frame = random_frame(step)
        store.write(record(step, frame))
        if step % 7 == 0:
            heat = read_heat(run, "gradient", columns=6)
            assert (heat.first[0], heat.last[-1]) == (0, step)
            rows = np.stack([random_frame(at).summaries for at in range(step + 1)], axis=1)
            check_cells(heat, rows, "norm", np.arange(step + 1))
    store.close("finished", None)


def test_rollups_may_be_gathered_while_somebody_looks(tmp_path):
    store = write_rolled_up(tmp_path / "run", range(20), close=None)
    frames = [random_frame(step) for step in range(20, 600)]

    def write():
        for frame in frames:
            store.write(record(frame.step, frame))
        store.close("finished", None)

    writer = threading.Thread(target=write)
    writer.start()
    run = open_run(tmp_path / "run")
    newest = 19
    while writer.is_alive():
        heat = read_heat(run, "gradient", columns=8)
        assert heat.last[-1] >= newest
        assert heat.has.all()
        newest = heat.last[-1]
        assert read_curve(run, TARGETS[0], "gradient", points=8).steps[-1] >= newest
    writer.join()
    assert read_heat(run, "gradient", columns=8).last[-1] == 599


def test_targets_come_in_model_order_however_they_were_observed(tmp_path):
    structure = {"modules": [], "parameters": [{"name": name, "shape": [8]} for name in TARGETS]}

    def frames(step):
        return [random_frame(step, targets=TARGETS[::-1])]

    write_rolled_up(tmp_path / "run", range(20), frames=frames, structure=structure)
    run = open_run(tmp_path / "run")
    assert tuple(run.targets("gradient")) == TARGETS[::-1]
    assert read_heat(run, "gradient").targets == TARGETS


def test_more_targets_than_rows_share_rows_and_no_spike_is_lost(tmp_path):
    names = tuple(f"layers.{index}.weight" for index in range(30))

    def frames(step):
        frame = random_frame(step, targets=names)
        frame.summaries[:, :] = np.nan_to_num(frame.summaries, posinf=0, neginf=0)
        if step == 123:
            frame.summaries[17, 2] = 1e30
        return [frame]

    write_rolled_up(tmp_path / "run", range(300), frames=frames)
    run = open_run(tmp_path / "run")
    for columns in (5, 1000):
        heat = read_heat(run, "gradient", rows=7, columns=columns)
        assert heat.values.shape[0] == len(heat.targets) == 7
        assert sum(heat.groups) == 30
        row, column = np.unravel_index(np.nanargmax(heat.values), heat.values.shape)
        assert heat.values[row, column] == np.float32(1e15)
        assert heat.first[column] <= 123 <= heat.last[column]
        first_name = names.index(heat.targets[row])
        assert first_name <= 17 < first_name + heat.groups[row]


def test_plain_numbers_have_a_heat_map_too(long_run):
    run, _ = long_run
    for columns in (10, 1000):
        heat = read_heat(run, "scalar", columns=columns)
        assert heat.statistic == "value"
        assert set(heat.targets) == {"loss", "lr"}
        for at, (first, last) in enumerate(zip(heat.first, heat.last, strict=True)):
            steps = np.arange(first, last + 1)
            row = heat.targets.index("loss")
            assert heat.bad[row, at] == (steps % 97 == 5).any()
            values = np.sin(steps)[steps % 97 != 5]
            assert abs(heat.values[row, at]) == np.float32(np.abs(values).max()) if len(values) else True
            assert heat.values[heat.targets.index("lr"), at] == np.float32(last / 7)


def test_wrong_names_are_refused_with_the_nearest_right_one(long_run):
    run, _ = long_run
    with pytest.raises(ConfigError, match="Did you mean 'gradient'"):
        read_heat(run, "gradiant")
    with pytest.raises(ConfigError, match="Did you mean 'norm'"):
        read_heat(run, "gradient", "nrom")
    with pytest.raises(ConfigError, match="Did you mean 'spread'"):
        read_heat(run, "gradient", rank="spred")
    with pytest.raises(ConfigError, match="rank: 7"):
        read_heat(run, "gradient", rank=7)


def test_micro_steps_are_one_point(tmp_path):
    def frames(step):
        return [random_frame(step, micro_step=micro) for micro in range(3)]

    write_rolled_up(tmp_path / "run", range(200), frames=frames)
    run = open_run(tmp_path / "run")
    for statistic in ("norm", "absmax", "zeros"):
        series = [run.series(target, "gradient", statistic) for target in TARGETS]
        for columns in (8, 1000):
            heat = read_heat(run, "gradient", statistic, columns=columns)
            for at, (first, last) in enumerate(zip(heat.first, heat.last, strict=True)):
                for row, one in enumerate(series):
                    values = one.values[(one.steps >= first) & (one.steps <= last)]
                    finite = values[np.isfinite(values)]
                    if len(finite):
                        assert heat.values[row, at] == np.float32(finite.max())


def test_a_short_run_has_no_rollups_and_shows_every_step(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in range(9)])
    assert not (tmp_path / "run" / "rank0" / "outlines").exists()
    heat = read_heat(open_run(tmp_path / "run"), "gradient")
    assert not heat.is_rollup
    assert heat.first.tolist() == heat.last.tolist() == list(range(9))


@pytest.mark.parametrize("columns", [40, 1000])
def test_a_search_shows_the_same_numbers_of_fewer_targets(long_run, columns):
    run, _ = long_run
    whole = read_heat(run, "gradient", columns=columns)
    found = read_heat(run, "gradient", columns=columns, search="LAYERS.1")
    assert found.targets == ("layers.1.weight", "layers.10.weight", "layers.11.weight")
    assert found.groups == (1, 1, 1)
    rows = [whole.targets.index(name) for name in found.targets]
    for name in ("values", "bad", "has"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name)[rows])


def test_a_search_that_finds_nothing_is_an_empty_heat_map(long_run):
    run, _ = long_run
    for columns in (40, 1000):
        assert read_heat(run, "gradient", columns=columns, search="bias").targets == ()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("columns", [20, 1000], ids=["rollups", "rows"])
def test_a_mask_in_a_row_of_several_targets_tells_only_of_its_nan(tmp_path, columns, world_size):
    hidden, sizes = np.where(np.arange(8) % 2, -np.inf, 0.0), np.ones(8)

    def frames(step):
        mask = np.full(8, np.nan) if step == 41 else hidden
        rows = np.array([summary_of(values) for values in (mask, sizes, hidden, hidden)])
        names = ("attn:input[1]", "attn:output", "more:input[1]", "more:input[2]")
        return [Frame("activation", step, 0, names, np.arange(4, dtype=np.int32), rows)]

    for rank in range(world_size):
        write_rolled_up(tmp_path / "run", range(100), rank=rank, world_size=world_size, frames=frames)
    heat = read_heat(open_run(tmp_path / "run"), "activation", "absmax", rows=2, columns=columns)
    assert heat.is_rollup == (columns == 20)
    assert (heat.targets, heat.groups) == (("attn:input[1]", "more:input[1]"), (2, 2))
    assert (heat.kinds, heat.left_out) == (("", "mask"), ("attn:input[1]",))
    assert (heat.values[0] == 1).all()
    (column,) = np.flatnonzero(heat.bad[0])
    assert heat.first[column] <= 41 <= heat.last[column]
    assert not heat.bad[1].any()
