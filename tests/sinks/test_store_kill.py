"""Killed at any moment, the store loses nothing it acknowledged."""

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from made_runs import check_rows, header, record, small_parts, write_run
from vario.core.errors import RunTaken
from vario.runs.run import open_run
from vario.sinks.store import Store

WRITER = Path(__file__).with_name("endless_writer.py")


def write_until_killed(path, after_steps):
    with subprocess.Popen([sys.executable, str(WRITER), str(path)], stdout=subprocess.PIPE, text=True) as process:
        acknowledged = [int(process.stdout.readline()) for _ in range(after_steps)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().split("\n") if line.strip()]
    assert process.returncode == -9
    return acknowledged


def test_every_acknowledged_row_survives_kills_at_random_moments(tmp_path):
    path = tmp_path / "run"
    chance = random.Random(0)
    acknowledged = []
    for session in range(6):
        acknowledged += write_until_killed(path, chance.randint(1, 120))
        run = open_run(path)
        assert run.state == "crashed"
        assert len(run.sessions) == session + 1
        rows = run.to_arrow("gradient")
        shown = sorted(set(rows.column("step").to_pylist()))
        # The step that was being written when the kill came may or may not be there.
        assert shown in (acknowledged, [*acknowledged, acknowledged[-1] + 1])
        check_rows(rows, shown)
        assert set(run.steps("scalar")) >= set(acknowledged)
        acknowledged = shown
    write_run(path, [], resume=True)
    check_rows(open_run(path).to_arrow("gradient"), acknowledged)
    assert not list(path.rglob("*.arrow")), "closing compacts what dead sessions left"


def test_a_run_that_is_still_written_is_not_resumed(tmp_path):
    with subprocess.Popen([sys.executable, str(WRITER), str(tmp_path / "run")], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(RunTaken, match=f"process {process.pid} is still writing"):
            Store().open(header(tmp_path / "run", resume=True))
        process.kill()
    assert write_run(tmp_path / "run", [], resume=True).first_step > 0


@pytest.fixture
def small_run(tmp_path):
    """A run that was never closed, and the sizes of its live stream after each step."""
    store = Store()
    store.open(header(tmp_path / "run"))
    stream = tmp_path / "run" / "rank0" / "gradient.live.arrow"
    sizes = []
    for step in range(2):
        store.write(record(step, time=0.0))
        sizes.append(stream.stat().st_size)
    return tmp_path / "run", stream, sizes


def test_a_stream_cut_at_any_byte_shows_its_whole_batches(small_run):
    path, stream, sizes = small_run
    content = stream.read_bytes()
    run = open_run(path)
    for length in range(len(content), -1, -1):
        stream.write_bytes(content[:length])
        whole = sum(size <= length for size in sizes)
        table = run.to_arrow("gradient")
        assert table.num_rows == 4 * whole, f"cut at byte {length}"
    stream.write_bytes(content)
    check_rows(run.to_arrow("gradient"), range(2))


def test_resuming_after_a_cut_at_any_place_keeps_whole_batches_and_goes_on(small_run, tmp_path):
    path, stream, sizes = small_run
    content = stream.read_bytes()
    for length in [*range(0, len(content), 149), *sizes]:
        for part in (path / "rank0" / "gradient").glob("*"):
            part.unlink()
        stream.write_bytes(content[:length])
        whole = sum(size <= length for size in sizes)
        write_run(path, [record(step) for step in (3, 4)], resume=True, first_step=3)
        check_rows(open_run(path).to_arrow("gradient"), [*range(whole), 3, 4])


def test_a_stream_of_zeros_after_power_loss_is_an_empty_one(small_run):
    path, stream, _ = small_run
    stream.write_bytes(bytes(4096))
    assert open_run(path).to_arrow("gradient").num_rows == 0


def test_a_kill_between_compaction_and_removal_shows_rows_once(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in range(4)], small_parts())
    part = tmp_path / "run" / "rank0" / "gradient" / "part-000001.parquet"
    before = part.read_bytes()
    write_run(tmp_path / "other", [record(step) for step in range(4)], Store(), close=None)
    stream = (tmp_path / "other" / "rank0" / "gradient.live.arrow").read_bytes()

    part.with_suffix(".arrow").write_bytes(stream)
    (part.parent / "part-000002.parquet.tmp").write_bytes(before[:100])
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), range(4))

    (part.parents[1] / "gradient.live.arrow").write_bytes(stream)
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), range(4))

    write_run(tmp_path / "run", [], resume=True)
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), range(4))
    assert [entry.name for entry in part.parent.iterdir()] == ["part-000001.parquet"]


def test_any_arrow_reader_understands_the_live_stream(small_run):
    _, stream, _ = small_run
    table = pa.ipc.open_stream(stream.read_bytes()).read_all()
    assert table.num_rows == 8
    assert table.schema.metadata == {b"vario.format": b"1", b"vario.part": b"1", b"vario.session": b"0"}
