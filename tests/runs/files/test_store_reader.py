import numpy as np
import pyarrow.parquet as pq

from made_runs import Frame, header, record, small_parts, write_run
from rollup_runs import TARGETS, random_frame, write_rolled_up
from vario.core.records import COLUMNS
from vario.runs.run import open_run
from vario.store.compaction import ROWS_PER_GROUP


def wide_run(path, num_targets, num_steps):
    """Rows whose sum tells step and target."""
    names = [f"layers.{index:05d}.weight" for index in range(num_targets)]
    order = np.arange(num_targets, dtype=np.int32)

    def frame(step):
        table = np.zeros((num_targets, len(COLUMNS)))
        table[:, COLUMNS.index("sum")] = step * num_targets + order
        table[:, COLUMNS.index("count")] = 1
        return Frame("gradient", step, 0, names, order, table)

    write_run(path, [record(step, frame(step)) for step in range(num_steps)])
    return names


def test_one_series_decodes_few_row_groups_and_is_right_at_their_borders(tmp_path):
    num_steps, num_targets = 30, 1000
    names = wide_run(tmp_path / "run", num_targets, num_steps)
    (part,) = (tmp_path / "run" / "rank0" / "gradient").iterdir()
    assert pq.read_metadata(part).num_row_groups == -(-num_steps * num_targets // ROWS_PER_GROUP)
    run = open_run(tmp_path / "run")
    border = ROWS_PER_GROUP // num_steps
    for index in (0, border - 1, border, border + 1, num_targets - 1):
        series = run.series(names[index], "gradient", "mean")
        assert series.steps.tolist() == list(range(num_steps))
        assert series.values.tolist() == [step * num_targets + index for step in range(num_steps)]


def test_the_first_nan_of_a_long_run_is_found_without_opening_parts_that_have_none(tmp_path):
    def frames(step):
        frame = random_frame(step)
        frame.summaries[:, [COLUMNS.index("nans"), COLUMNS.index("infs")]] = 0
        if step == 153:
            frame.summaries[2, COLUMNS.index("nans")] = 1
        return [frame]

    write_rolled_up(tmp_path / "run", range(200), frames=frames)
    folder = tmp_path / "run" / "rank0" / "gradient"
    for number in (1, 2, 3):
        (folder / f"part-{number:06d}.parquet").write_bytes(b"not readable any more")
    found = open_run(tmp_path / "run").bad_rows("gradient", 0)
    assert found.to_pylist()[0]["step"] == 153
    assert found.to_pylist()[0]["target"] == TARGETS[2]


def test_a_healthy_run_is_judged_by_the_footers_alone(tmp_path):
    wide_run(tmp_path / "run", 1000, 10)
    run = open_run(tmp_path / "run")
    assert run.bad_rows("gradient", 0) is None
    (part,) = (tmp_path / "run" / "rank0" / "gradient").iterdir()
    content = part.read_bytes()
    # Only the footer and the magic numbers are left, so reading any page would fail.
    footer_bytes = int.from_bytes(content[-8:-4], "little") + 8
    part.write_bytes(b"PAR1" + bytes(len(content) - 4 - footer_bytes) + content[-footer_bytes:])
    assert open_run(tmp_path / "run").bad_rows("gradient", 0) is None


def test_a_run_that_is_kept_open_sees_the_rows_that_came_before_a_stream_was_closed(tmp_path):
    store = small_parts()
    store.open(header(tmp_path / "run"))
    store.write(record(0))
    run = open_run(tmp_path / "run")
    reader = run.reader(0, "scalar")
    assert run.steps("gradient").tolist() == [0]
    assert np.isfinite(reader.times(run.sessions, np.arange(1))).all()
    for step in range(1, 40):
        store.write(record(step))
    store.close("finished", None)
    assert run.steps("gradient").tolist() == list(range(40))
    assert np.isfinite(reader.times(run.sessions, np.arange(40))).all()
