import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from made_runs import NAMES, check_rows, frame, header, record, small_parts, summary, tensor, write_run
from vario.core.errors import RunCorrupt, RunTaken, RunTooNew
from vario.core.records import COLUMNS
from vario.runs.run import open_run
from vario.sinks import SINKS, in_memory
from vario.sinks.store import Store
from vario.store import encoding
from vario.store.live_stream import LiveStream


def test_all_sinks_are_found_by_their_presence():
    ours, live = (
        ["alerts", "in_memory", "machine", "origin", "shipping", "store"],
        ["mlflow", "opentelemetry", "tensorboard", "trackio", "wandb"],
    )
    assert SINKS.names() == sorted(ours + live)
    assert SINKS.get("store") is Store


def test_what_is_written_is_read_back_live_and_closed(tmp_path):
    store = Store()
    store.open(header(tmp_path / "run"))
    for step in range(10):
        store.write(record(step))
        check_rows(open_run(tmp_path / "run").to_arrow("gradient"), range(step + 1))
    store.close("finished", None)
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), range(10))
    assert sorted(entry.name for entry in (tmp_path / "run" / "rank0").rglob("*") if entry.is_file()) == [
        "part-000001.parquet",
        "part-000001.parquet",
        "rank.json",
        "structure.json",
        "writer-0-0.json",
    ]


@pytest.mark.parametrize("rows", [1, 3, 4096])
def test_steps_that_come_together_are_read_as_if_they_had_come_one_by_one(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(encoding, "MOST_TOGETHER", rows)
    together, alone = Store(part_steps=8, small_part_bytes=0), Store(part_steps=8, small_part_bytes=0)
    names = [NAMES, NAMES[::-1], (*NAMES, "late"), NAMES[:1]]
    records = [
        record(step, *(frame(step, micro_step=micro, targets=names[step % 4]) for micro in range(2)))
        for step in range(20)
    ]
    for name, store in (("together", together), ("alone", alone)):
        store.open(header(tmp_path / name))
    for first, last in ((0, 1), (1, 9), (9, 20)):
        together.write_all(records[first:last])
        for one in records[first:last]:
            alone.write(one)
        for quantity in ("gradient", "scalar"):
            tables = [open_run(tmp_path / name).to_arrow(quantity) for name in ("together", "alone")]
            assert rows_of(tables[0]) == rows_of(tables[1])
            assert tables[0].num_rows
    for store in (together, alone):
        store.close("finished", None)
    tables = [open_run(tmp_path / name).to_arrow("gradient") for name in ("together", "alone")]
    assert rows_of(tables[0]) == rows_of(tables[1])


def rows_of(table):
    return sorted(map(repr, table.to_pylist()))


def test_a_step_whose_plain_numbers_are_there_is_whole(tmp_path, monkeypatch):
    store = Store()
    store.open(header(tmp_path / "run"))
    store.write(record(0))
    seen = []

    def flush(file, whole=LiveStream.flush):
        whole(file)
        run = open_run(tmp_path / "run")
        newest = run.steps("scalar")[-1]
        seen.append(newest)
        assert set(range(1, newest + 1)) <= set(run.steps("update").tolist())

    monkeypatch.setattr(LiveStream, "flush", flush)
    store.write_all([record(step, frame(step, quantity="update")) for step in range(1, 8)])
    assert 7 in seen
    store.close("finished", None)


def test_parts_are_sorted_by_target_step_and_micro_step(tmp_path):
    frames = [[frame(step, micro_step=micro) for micro in range(2)] for step in range(6)]
    write_run(tmp_path / "run", [record(step, *both) for step, both in enumerate(frames)], small_parts())
    parts = sorted((tmp_path / "run" / "rank0" / "gradient").iterdir())
    assert [part.name for part in parts] == ["part-000001.parquet", "part-000002.parquet"]
    for number, part in enumerate(parts, 1):
        table = pq.read_table(part)
        keys = list(zip(*(table.column(name).to_pylist() for name in ("target", "step", "micro_step")), strict=True))
        assert keys == sorted(keys)
        assert table.schema.metadata[b"vario.part"] == str(number).encode()
        assert table.schema.field("target").type == pa.dictionary(pa.int32(), pa.string())
    chunk = pq.read_metadata(parts[0]).row_group(0).column(table.column_names.index("sum"))
    assert chunk.compression == "ZSTD"
    assert "BYTE_STREAM_SPLIT" in chunk.encodings


def test_new_targets_may_appear_at_any_step(tmp_path):
    late = [
        record(step, frame(step, targets=(*NAMES, *(f"late.{index}" for index in range(step))))) for step in range(9)
    ]
    for name, store in (("one_part", Store()), ("small_parts", small_parts())):
        path = tmp_path / name
        write_run(path, late, store, close=None)
        run = open_run(path)
        assert run.targets("gradient") == [*NAMES, *(f"late.{index}" for index in range(8))]
        assert run.series("late.5", "gradient", "count").steps.tolist() == [6, 7, 8]
        store.close("finished", None)
        assert open_run(path).to_arrow("gradient").num_rows == 9 * 4 + sum(range(9))
        assert open_run(path).targets("gradient") == [*NAMES, *(f"late.{index}" for index in range(8))]


def test_targets_may_come_in_another_order_each_step(tmp_path):
    orders = [NAMES, NAMES[::-1], NAMES[2:], NAMES[:1], (NAMES[0], "new", NAMES[1])]
    write_run(tmp_path / "run", [record(step, frame(step, targets=names)) for step, names in enumerate(orders)])
    for step, names in enumerate(orders):
        table = open_run(tmp_path / "run").frame(step, "gradient")
        assert table.column("target").to_pylist() == list(names)
        expected = [summary(tensor(step, name))[1] for name in names]
        assert table.column("sum").to_pylist() == expected


def test_a_list_of_targets_that_is_changed_in_place_is_noticed(tmp_path):
    names = ["a", "b"]
    store = Store()
    store.open(header(tmp_path / "run"))
    store.write(record(0, frame(0, targets=names)))
    names[1] = "c"
    store.write(record(1, frame(1, targets=names)))
    assert open_run(tmp_path / "run").targets("gradient") == ["a", "b", "c"]
    store.close("finished", None)


def test_columns_nobody_asked_for_hold_nulls(tmp_path):
    write_run(tmp_path / "run", [record(0)], config={"statistics": ["norm"]})
    row = open_run(tmp_path / "run").to_arrow("gradient").to_pylist()[0]
    expected = summary(tensor(0, row["target"]))
    assert {name for name in COLUMNS if row[name] is None} == {"min", "max", "zeros"}
    assert (row["count"], row["sum"], row["sum_squares"]) == tuple(expected[:3])


def test_a_tensor_of_nans_has_no_minimum_but_its_nans_are_counted(tmp_path):
    bad = {"head.weight": np.full(16, np.nan), "embed.weight": np.array([np.inf, 1.0])}
    write_run(tmp_path / "run", [record(0, frame(0, tensors=bad))])
    rows = {row["target"]: row for row in open_run(tmp_path / "run").to_arrow("gradient").to_pylist()}
    head = rows["head.weight"]
    assert (head["min"], head["max"], head["nans"]) == (None, None, 16)
    assert np.isnan(head["sum"])
    assert rows["embed.weight"]["max"] == np.inf
    assert rows["embed.weight"]["infs"] == 1


def test_plain_numbers_stay_what_they_are(tmp_path):
    write_run(tmp_path / "run", [record(0, loss=np.nan, rate=np.inf), record(1, loss=0.25)], small_parts(part_steps=1))
    run = open_run(tmp_path / "run")
    np.testing.assert_array_equal(run.series("loss", "scalar", "value").values, [np.nan, 0.25])
    np.testing.assert_array_equal(run.series("rate", "scalar", "value").values, [np.inf])


def test_a_step_without_frames_or_numbers_is_no_error(tmp_path):
    empty = frame(0, targets=())
    store = write_run(tmp_path / "run", [record(0, empty, loss=1.0)])
    assert open_run(tmp_path / "run").quantities() == ["scalar"]
    assert store.dropped_steps == 0


def test_a_reader_sees_every_row_once_while_parts_close_and_are_compacted(tmp_path):
    store = small_parts(part_steps=2)
    store.open(header(tmp_path / "run"))
    store.write(record(0))
    newest = [0]

    def write():
        for step in range(1, 400):
            store.write(record(step))
            newest[0] = step
        store.close("finished", None)

    writer = threading.Thread(target=write)
    writer.start()
    run = open_run(tmp_path / "run")
    num_reads = 0
    while writer.is_alive() or num_reads == 0:
        acknowledged = newest[0]
        for quantity, per_step in (("gradient", 4), ("scalar", 1)):
            steps, counts = np.unique(run.to_arrow(quantity).column("step").to_numpy(), return_counts=True)
            assert (counts == per_step).all()
            np.testing.assert_array_equal(steps, np.arange(len(steps)))
            assert len(steps) > acknowledged
        num_reads += 1
    writer.join()
    check_rows(run.to_arrow("gradient"), range(400))


def test_a_run_is_not_written_over(tmp_path):
    write_run(tmp_path / "run", [record(0)])
    with pytest.raises(RunTaken, match=r"already contains a run.*resume = true"):
        Store().open(header(tmp_path / "run"))
    with pytest.raises(RunTaken, match="contains another run"):
        Store().open(header(tmp_path / "run", rank=1, world_size=2))


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    with pytest.raises(RunTaken, match=r"contains 'train\.py'"):
        Store().open(header(tmp_path / "src"))


def test_ranks_share_a_folder_in_any_order(tmp_path):
    stores = {rank: Store() for rank in (2, 0, 1)}
    for rank, store in stores.items():
        store.open(header(tmp_path / "run", rank=rank, world_size=3))
        store.write(record(0, frame(0, rank=rank)))
    for rank, store in stores.items():
        store.close("finished", None)
        check_rows(open_run(tmp_path / "run").to_arrow("gradient", rank), [0], rank=rank)
    assert open_run(tmp_path / "run").ranks == [0, 1, 2]


def test_the_lowest_recording_rank_describes_the_run(tmp_path):
    for rank in (3, 2):
        write_run(tmp_path / "run", [record(0)], rank=rank, world_size=4, config={"ranks": [2, 3]})
    assert open_run(tmp_path / "run").ranks == [2, 3]


def test_resuming_goes_on_after_the_last_recorded_step(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in range(6)], small_parts(), close=None)
    again = small_parts()
    again.open(header(tmp_path / "run", resume=True))
    assert again.first_step == 6
    for step in range(6, 9):
        again.write(record(step))
    run = open_run(tmp_path / "run")
    check_rows(run.to_arrow("gradient"), range(9))
    assert [session["first_step"] for session in run.sessions] == [0, 6]
    again.close("finished", None)
    check_rows(run.to_arrow("gradient"), range(9))


def test_resuming_from_a_checkpoint_takes_steps_back(tmp_path):
    path = tmp_path / "run"
    write_run(path, [record(step, loss=0.0) for step in range(10)], small_parts())
    store = write_run(path, [record(step, loss=1.0) for step in (5, 6)], small_parts(), resume=True, first_step=5)
    assert store.first_step == 5
    run = open_run(path)
    check_rows(run.to_arrow("gradient"), range(7))
    assert run.series("loss", "scalar").values.tolist() == [0] * 5 + [1] * 2
    third = write_run(path, [record(7, loss=2.0)], small_parts(), resume=True)
    assert third.first_step == 7, "the steps that were taken back do not count"
    assert run.series("loss", "scalar").steps.tolist() == list(range(8))
    assert run.sql("select count(*) as n from gradient").column("n").to_pylist() == [32]


def test_every_rank_resumes_at_the_same_step_whoever_comes_first(tmp_path):
    path = tmp_path / "run"
    for rank, last in ((0, 4), (1, 5)):
        write_run(path, [record(step) for step in range(last + 1)], rank=rank, world_size=2, close=None)
    for order in ((0, 1), (1, 0)):
        stores = {}
        for rank in order:
            stores[rank] = Store()
            stores[rank].open(header(path, rank=rank, world_size=2, resume=True))
        first = stores[0].first_step
        assert stores[1].first_step == first
        for rank in order:
            stores[rank].write(record(first, frame(first, rank=rank)))
    assert first == 6
    assert open_run(path).steps("gradient", 1).tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_resuming_where_nothing_is_starts_a_run(tmp_path):
    write_run(tmp_path / "run", [record(0)], resume=True)
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), [0])


def test_a_damaged_or_newer_run_is_not_resumed(tmp_path):
    write_run(tmp_path / "run", [record(0)])
    (tmp_path / "run" / "run.json").write_text('{"format": 3}')
    with pytest.raises(RunTooNew, match="pip install -U vario"):
        Store().open(header(tmp_path / "run", resume=True))
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(RunCorrupt, match=r"run\.json"):
        Store().open(header(tmp_path / "run", resume=True))


def test_the_status_file_follows_the_steps_about_once_a_second(tmp_path):
    store = Store()
    store.open(header(tmp_path / "run"))
    status = tmp_path / "run" / "rank0" / "rank.json"
    for step, seconds in enumerate((0.0, 0.5, 0.9, 1.1)):
        store.write(record(step, time=seconds))
        assert f'"last_step": {[0, 0, 0, 3][step]}' in status.read_text()
    store.note([{"part": "activations", "step": 3, "error": "ValueError: no"}], 0)
    assert open_run(tmp_path / "run").parts_off[0].part == "activations"
    store.close("crashed", "RuntimeError: out of memory")
    run = open_run(tmp_path / "run")
    assert (run.state, run.error) == ("crashed", "RuntimeError: out of memory")
    assert run.ended >= run.started


def test_writing_and_compacting_never_imports_pandas(tmp_path):
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from made_runs import record, small_parts, write_run
write_run(sys.argv[2], [record(step) for step in range(9)], small_parts())
write_run(sys.argv[2], [record(9)], small_parts(), resume=True)
assert "pandas" not in sys.modules
"""
    arguments = [str(Path(__file__).parents[1]), str(tmp_path / "run")]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True)
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), range(10))


def test_in_memory_keeps_records():
    sink = in_memory.InMemory()
    sink.open(header("nowhere", first_step=3))
    sink.write(record(3))
    sink.close("finished", None)
    assert (sink.first_step, sink.records[0].step, sink.state) == (3, 3, "finished")
