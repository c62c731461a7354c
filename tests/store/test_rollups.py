import itertools
import shutil

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from made_runs import record, write_run
from rollup_runs import STATISTICS, TARGETS, by_numpy, random_frame, rollup_names, small_rollups, write_rolled_up
from vario.runs.run import open_run
from vario.runs.views.heat import read_heat
from vario.sinks.store import Store
from vario.store.rollup_files import every_step, progressions, read_rollup

NUM_STEPS = 700


def same_heat(path, steps, columns=20, statistic="norm"):
    """Whether a picture made from rollups tells what the rows of these steps do."""
    heat = read_heat(open_run(path), "gradient", statistic, columns=columns)
    assert heat.is_rollup
    rows = {step: random_frame(step).summaries for step in steps}
    for at, (first, last) in enumerate(zip(heat.first, heat.last, strict=True)):
        for place, target in enumerate(heat.targets):
            cell = [rows[step][TARGETS.index(target)] for step in range(first, last + 1) if step in rows]
            values = by_numpy(cell, statistic)
            finite = values[np.isfinite(values)]
            assert len(finite) == 0 or np.float32(np.abs(finite).max()) == abs(heat.values[place, at])
    assert heat.last[-1] == max(steps)


def test_a_long_run_has_few_files_of_ever_coarser_rollups(tmp_path):
    write_rolled_up(tmp_path / "run", range(NUM_STEPS))
    names = rollup_names(tmp_path / "run")
    num_parts = len(list((tmp_path / "run" / "rank0" / "gradient").iterdir()))
    assert num_parts == NUM_STEPS / 10
    assert len(names) < num_parts / 3
    assert {name[0] for name in names} >= {"1", "2", "3"}
    assert all(name.endswith(".parquet") for name in names)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_each_level_stands_for_every_row_exactly_once(tmp_path, level):
    write_rolled_up(tmp_path / "run", range(NUM_STEPS))
    folder = tmp_path / "run" / "rank0" / "outlines" / "gradient"
    tables = [pq.read_table(path) for path in sorted(folder.glob(f"{level}-*.parquet"))]
    points = np.concatenate([table.column("points").to_numpy() for table in tables])
    assert points.sum() == NUM_STEPS * len(TARGETS)
    frames = [random_frame(step) for step in range(NUM_STEPS)]
    rows = {name: np.stack([frame.summaries[at] for frame in frames]) for at, name in enumerate(TARGETS)}
    for table in tables:
        for row in table.to_pylist():
            cell = rows[row["target"]][row["first_step"] : row["last_step"] + 1]
            assert row["bad"] == ((cell[:, 5] > 0) | (cell[:, 6] > 0)).sum()
            for statistic in STATISTICS:
                values = by_numpy(cell, statistic)
                finite = values[np.isfinite(values)]
                told = [row[f"{statistic}_{which}"] for which in ("low", "high", "last")]
                expected = [finite.min(), finite.max()] if len(finite) else [np.nan, np.nan]
                np.testing.assert_array_equal(told, [*expected, values[-1]])


def test_a_rollup_says_which_parts_hold_which_steps(tmp_path):
    write_rolled_up(tmp_path / "run", range(0, 3 * NUM_STEPS, 3))
    folder = tmp_path / "run" / "rank0" / "outlines" / "gradient"
    told = {}
    for path in folder.iterdir():
        rollup = read_rollup(path)
        assert rollup.name == path.name
        for number, first, last, num_rows in rollup.parts:
            told[number] = (first, last, num_rows)
        steps = every_step(rollup.steps)
        assert (steps % 3 == 0).all()
        assert len(rollup.steps) == 1
        assert (rollup.buckets[0][0], rollup.buckets[-1][1]) == (steps[0], steps[-1])
    for path in (tmp_path / "run" / "rank0" / "gradient").iterdir():
        steps = pq.read_table(path, columns=["step"]).column("step").to_numpy()
        assert told[int(path.stem.removeprefix("part-"))] == (steps.min(), steps.max(), len(steps))


def test_another_tool_reads_rollups_with_no_help_of_ours(tmp_path):
    write_rolled_up(tmp_path / "run", range(NUM_STEPS))
    folder = tmp_path / "run" / "rank0" / "outlines" / "gradient"
    query = f"""select min(first_step), max(last_step), sum(points), max(norm_high) from '{folder}/1-*.parquet'
                where target = '{TARGETS[3]}'"""
    with duckdb.connect() as connection:
        first, last, points, highest = connection.execute(query).fetchone()
    values = by_numpy([random_frame(step).summaries[3] for step in range(NUM_STEPS)], "norm")
    assert (first, last, points) == (0, NUM_STEPS - 1, NUM_STEPS)
    assert highest == values[np.isfinite(values)].max()


def test_steps_are_told_as_few_even_runs():
    assert progressions(np.arange(0, 1000, 10)) == ((0, 10, 100),)
    assert progressions(np.array([0, 1, 2, 5, 6, 7, 10, 20, 30])) == ((0, 1, 3), (5, 1, 3), (10, 10, 3))
    assert progressions(np.zeros(0, np.int64)) == ()
    chance = np.random.default_rng(0)
    for _ in range(200):
        steps = np.unique(chance.integers(0, 60, chance.integers(1, 40)))
        assert every_step(progressions(steps)).tolist() == steps.tolist()


def test_parts_are_what_they_were_and_no_pattern_of_theirs_meets_a_rollup(tmp_path):
    write_rolled_up(tmp_path / "run", range(100))
    write_rolled_up(tmp_path / "plain", range(100), store=small_rollups(rollup_min_rows=10**9))
    for part in (tmp_path / "plain" / "rank0" / "gradient").iterdir():
        twin = tmp_path / "run" / "rank0" / "gradient" / part.name
        assert twin.read_bytes() == part.read_bytes()
    assert not (tmp_path / "plain" / "rank0" / "outlines").exists()
    # What people type to read a quantity, or all of them: rows must not come twice.
    assert pq.read_table(tmp_path / "run" / "rank0" / "gradient").num_rows == 100 * len(TARGETS)
    assert not list((tmp_path / "run" / "rank0").glob("*/[!p]*.parquet"))


def test_a_quantity_gets_rollups_once_it_has_many_rows_and_then_of_all_of_them(tmp_path):
    store = write_rolled_up(tmp_path / "run", range(30), store=small_rollups(rollup_min_rows=200), close=None)
    assert not (tmp_path / "run" / "rank0" / "outlines" / "gradient").exists()
    for step in range(30, 60):
        store.write(record(step, random_frame(step)))
    store.close("finished", None)
    assert rollup_names(tmp_path / "run")[0].startswith("1-000001-")
    same_heat(tmp_path / "run", range(60), columns=5)


def test_resuming_goes_on_with_rollups_and_owes_none(tmp_path):
    path = tmp_path / "run"
    write_rolled_up(path, range(100))
    write_rolled_up(path, range(100, 200), resume=True, first_step=100)
    covered = set()
    for file in (path / "rank0" / "outlines" / "gradient").glob("1-*"):
        covered |= {number for number, *_ in read_rollup(file).parts}
    assert covered == set(range(1, 21))
    same_heat(path, range(200))


def test_steps_that_a_resume_took_back_are_not_shown(tmp_path):
    path = tmp_path / "run"
    write_rolled_up(path, range(160), frames=lambda step: [random_frame(step, seed=9)])
    for first in (97, 41):
        write_rolled_up(
            path, range(first, 160), resume=True, first_step=first, frames=lambda step: [random_frame(step)]
        )
    rows = {step: random_frame(step, seed=9 if step < 41 else 0).summaries for step in range(160)}
    run = open_run(path)
    for columns in (4, 12, 1000):
        heat = read_heat(run, "gradient", "mean", columns=columns)
        assert heat.last[-1] == 159
        for at, (first, last) in enumerate(zip(heat.first, heat.last, strict=True)):
            for place, target in enumerate(heat.targets):
                values = by_numpy([rows[step][TARGETS.index(target)] for step in range(first, last + 1)], "mean")
                finite = values[np.isfinite(values)]
                assert len(finite) == 0 or abs(heat.values[place, at]) == np.float32(np.abs(finite).max())
    assert run.steps("gradient").tolist() == list(range(160))


def test_a_killed_writer_owes_rollups_that_the_next_session_makes(tmp_path):
    path = tmp_path / "run"
    store = write_rolled_up(path, range(57), close=None)
    store._compactor.finish()  # as if killed right after the last part: nothing is closed, the live stream stays
    shutil.rmtree(path / "rank0" / "outlines" / "gradient")
    write_rolled_up(path, range(57, 90), resume=True, first_step=57)
    same_heat(path, range(90), columns=5)
    assert rollup_names(path)[0].startswith("1-000001-")


def test_rows_of_earlier_sessions_count_towards_rollups(tmp_path):
    path = tmp_path / "run"
    for first in (0, 20, 40):
        write_rolled_up(
            path, range(first, first + 20), store=small_rollups(rollup_min_rows=250), resume=first > 0, first_step=first
        )
        assert (path / "rank0" / "outlines" / "gradient").exists() == (first == 40)
    same_heat(path, range(60), columns=5)


@pytest.mark.parametrize("keep", ["small ones", "no coarser one", "half a file"])
def test_a_kill_while_rollups_are_gathered_leaves_nothing_double_or_missing(tmp_path, keep):
    path, before = tmp_path / "run", tmp_path / "before"
    write_rolled_up(path, range(70), close=None)._compactor.finish()
    folder = path / "rank0" / "outlines" / "gradient"
    shutil.copytree(folder, before)
    write_rolled_up(path, range(70, 400), resume=True, first_step=70)
    if keep == "small ones":
        for file in before.iterdir():
            shutil.copy(file, folder / file.name)
    elif keep == "no coarser one":
        for file in [*folder.glob("2-*"), *folder.glob("3-*")]:
            file.unlink()
    else:
        (folder / "2-000001-000040.parquet.tmp").write_bytes(next(folder.glob("1-*")).read_bytes()[:100])
    same_heat(path, range(400))
    files = open_run(path).reader(0, "gradient").rollups()
    for one, other in itertools.combinations(files, 2):
        assert one.level != other.level or one.range[1] < other.range[0]
    write_rolled_up(path, range(400, 450), resume=True, first_step=400)
    same_heat(path, range(450))
    points = sum(
        pq.read_table(file, columns=["points"]).column("points").to_numpy().sum() for file in folder.glob("1-*")
    )
    assert points == 450 * len(TARGETS)
    assert not list(folder.glob("*.tmp"))


def test_rollups_that_cannot_be_written_cost_no_row(tmp_path, caplog):
    path = tmp_path / "run"
    (path / "rank0").mkdir(parents=True)
    (path / "rank0" / "outlines").write_text("in the way")
    write_rolled_up(path, range(100))
    assert caplog.text.count("gradient: no rollups from now on") == 1
    run = open_run(path)
    assert run.to_arrow("gradient").num_rows == 100 * len(TARGETS)
    assert not read_heat(run, "gradient", columns=5).is_rollup


def test_a_run_without_rollups_reads_as_before(tmp_path):
    write_rolled_up(tmp_path / "run", range(100))
    run = open_run(tmp_path / "run")
    before = [
        run.targets("gradient"),
        run.steps("gradient").tolist(),
        run.series(TARGETS[0], "gradient").values.tolist(),
    ]
    frame = run.frame(42, "gradient")
    shutil.rmtree(tmp_path / "run" / "rank0" / "outlines")
    run = open_run(tmp_path / "run")
    after = [
        run.targets("gradient"),
        run.steps("gradient").tolist(),
        run.series(TARGETS[0], "gradient").values.tolist(),
    ]
    np.testing.assert_equal(before, after)
    assert repr(run.frame(42, "gradient").to_pylist()) == repr(frame.to_pylist())
    assert not read_heat(run, "gradient", columns=5).is_rollup


def test_parts_may_go_and_their_rollups_still_show_the_run(tmp_path):
    path = tmp_path / "run"
    write_rolled_up(path, range(200))
    for part in sorted((path / "rank0" / "gradient").iterdir())[:15]:
        part.unlink()
    same_heat(path, range(200), columns=5)
    write_rolled_up(path, range(200, 230), resume=True, first_step=200)
    numbers = sorted(int(part.stem.removeprefix("part-")) for part in (path / "rank0" / "gradient").iterdir())
    assert numbers == list(range(16, 24))


def test_targets_that_come_later_are_in_the_rollups_too(tmp_path):
    def frames(step):
        return [random_frame(step, targets=TARGETS if step >= 123 else TARGETS[1:4])]

    write_rolled_up(tmp_path / "run", range(300), frames=frames)
    run = open_run(tmp_path / "run")
    assert set(run.targets("gradient")) == set(TARGETS)
    heat = read_heat(run, "gradient", columns=6)
    assert heat.is_rollup
    late = heat.targets.index(TARGETS[0])
    assert heat.has[late].tolist() == (heat.last >= 123).astype(int).tolist()
    assert heat.has[heat.targets.index(TARGETS[2])].all()


def test_a_short_run_has_no_rollups(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in range(300)], Store(part_steps=10, small_part_bytes=0))
    assert not (tmp_path / "run" / "rank0" / "outlines").exists()
