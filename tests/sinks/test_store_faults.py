"""A disk that is full, gone or forbidden never stops training, and nothing recorded before becomes unreadable."""

import contextlib
import logging
import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from made_runs import check_rows, frame, header, record, small_parts
from vario.core.records import COLUMNS, Frame
from vario.runs.run import open_run
from vario.sinks.store import Store


@contextlib.contextmanager
def largest_file(num_bytes):
    """The kernel refuses to let any file of this process grow beyond this, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def disk():
    """A real file system of one MiB."""
    place = Path(tempfile.mkdtemp())
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
    place.rmdir()


def wide_frame(step, num_targets):
    names = [f"layers.{index}.weight" for index in range(num_targets)]
    table = np.full((num_targets, len(COLUMNS)), float(step))
    return Frame("gradient", step, 0, names, np.arange(num_targets, dtype=np.int32), table)


def warnings_of(caplog):
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]


def test_a_full_disk_keeps_steps_in_memory_and_records_them_when_there_is_room(disk, caplog):
    caplog.set_level(logging.INFO, "vario")
    store = Store()
    store.open(header(disk / "run"))
    ballast = disk / "ballast"
    store.write(record(0, wide_frame(0, 400)))
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    for step in range(1, 9):
        store.write(record(step, wide_frame(step, 400 + step)))
    assert open_run(disk / "run").to_arrow("gradient").num_rows >= 400, "what was there stays readable"
    (warning,) = warnings_of(caplog)
    assert "No space left on device" in warning
    assert str(disk / "run") in warning

    ballast.unlink()
    store.write(record(9, wide_frame(9, 409)))
    run = open_run(disk / "run")
    table = run.to_arrow("gradient")
    steps, counts = np.unique(table.column("step").to_numpy(), return_counts=True)
    assert steps.tolist() == list(range(10))
    assert counts.tolist() == [400, *range(401, 409), 409]
    assert run.series("layers.408.weight", "gradient", "norm").steps.tolist() == [9]
    assert "again; 0 steps dropped" in caplog.records[-1].getMessage()
    assert run.dropped_steps == 0
    store.close("finished", None)
    assert open_run(disk / "run").to_arrow("gradient").num_rows == table.num_rows


def test_beyond_the_backlog_whole_steps_are_dropped_and_counted(tmp_path, caplog):
    store = Store(backlog_bytes=4000)
    store.open(header(tmp_path / "run"))
    store.write(record(0))
    with largest_file(1):
        for step in range(1, 10):
            store.write(record(step, frame(step, targets=(*made_names(), f"new.{step}"))))
    assert 0 < store.dropped_steps < 9
    kept = 9 - store.dropped_steps
    store.write(record(10))
    store.close("finished", None)
    run = open_run(tmp_path / "run")
    shown = [0, *range(1, kept + 1), 10]
    assert run.steps("gradient").tolist() == shown
    assert run.steps("scalar").tolist() == shown
    assert run.dropped_steps == store.dropped_steps
    assert len(warnings_of(caplog)) == 1
    again = Store()
    again.open(header(tmp_path / "run", resume=True))
    assert again.dropped_steps == run.dropped_steps, "what an earlier session lost stays counted"
    again.close("finished", None)
    rows = run.to_arrow("gradient").to_pylist()
    check_rows(run.to_arrow("gradient").filter([row["target"] in made_names() for row in rows]), shown)
    assert {row["target"] for row in rows} == {*made_names(), *(f"new.{step}" for step in range(1, kept + 1))}


def made_names():
    return ("embed.weight", "layers.0.weight", "layers.0.bias", "head.weight")


def test_a_write_that_stops_halfway_is_cut_off_again(tmp_path):
    store = Store()
    store.open(header(tmp_path / "run"))
    store.write(record(0, time=0.0))
    stream = tmp_path / "run" / "rank0" / "gradient.live.arrow"
    whole = stream.stat().st_size
    for room in (1, 8, 100, 500):
        with largest_file(whole + room):
            store.write(record(room, time=0.0))
        assert stream.stat().st_size == whole
        check_rows(open_run(tmp_path / "run").to_arrow("gradient"), [0])
    store.close("finished", None)
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), [0, 1, 8, 100, 500])


def test_a_disk_that_stays_full_until_the_end_is_told_and_counted(tmp_path, caplog):
    store = Store()
    store.open(header(tmp_path / "run"))
    store.write(record(0, time=0.0))
    with largest_file(1):
        store.write(record(1))
        store.write(record(2))
        store.close("finished", None)
    assert store.dropped_steps == 2
    assert any("the last 2 steps were not recorded" in warning for warning in warnings_of(caplog))
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), [0])


def test_a_deleted_run_folder_is_made_again_for_the_steps_to_come(tmp_path):
    store = Store()
    store.open(header(tmp_path / "run"))
    for step in range(3):
        store.write(record(step))
    shutil.rmtree(tmp_path / "run")
    for step in range(3, 6):
        store.write(record(step, frame(step, targets=(*made_names()[:2], "late.weight"))))
    run = open_run(tmp_path / "run")
    check_rows(run.to_arrow("gradient"), range(3, 6), (*made_names()[:2], "late.weight"))
    assert run.structure()["modules"]
    store.close("finished", None)
    assert open_run(tmp_path / "run").state == "finished"


def test_a_folder_that_vanishes_with_its_parent_is_waited_for(tmp_path, caplog):
    runs = tmp_path / "mount" / "runs"
    runs.mkdir(parents=True)
    store = Store()
    store.open(header(runs / "run"))
    store.write(record(0))
    shutil.rmtree(tmp_path / "mount")
    store.write(record(1))
    store.write(record(2))
    assert len(warnings_of(caplog)) == 1
    assert not (tmp_path / "mount").exists()
    runs.mkdir(parents=True)
    store.write(record(3))
    check_rows(open_run(runs / "run").to_arrow("gradient"), [1, 2, 3])


@contextlib.contextmanager
def as_nobody():
    """Root may write anywhere, so permissions are tested as somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_place():
    """A folder that somebody else than root can reach too."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o777)
    yield place
    for folder in place.rglob("*/"):
        folder.chmod(0o777)
    place.chmod(0o777)
    shutil.rmtree(place)


def test_a_folder_that_cannot_be_written_yet_is_warned_about_and_tried_again(open_place, caplog):
    (open_place / "runs").mkdir()
    (open_place / "runs").chmod(0o555)
    with as_nobody():
        store = Store()
        store.open(header(open_place / "runs" / "run", first_step=7))
        assert store.first_step == 7
        store.write(record(7))
        (warning,) = warnings_of(caplog)
        assert "Permission denied" in warning
    (open_place / "runs").chmod(0o777)
    with as_nobody():
        store.write(record(8))
        store.close("finished", None)
    check_rows(open_run(open_place / "runs" / "run").to_arrow("gradient"), [7, 8])
    assert open_run(open_place / "runs" / "run").sessions[0]["first_step"] == 7


def test_losing_permission_while_parts_close_loses_no_row(open_place):
    with as_nobody():
        store = small_parts()
        store.open(header(open_place / "run"))
        store.write(record(0))
    (open_place / "run" / "rank0").chmod(0o555)
    with as_nobody():
        for step in range(1, 20):
            store.write(record(step))
        check_rows(open_run(open_place / "run").to_arrow("gradient"), range(20))
    (open_place / "run" / "rank0").chmod(0o777)
    with as_nobody():
        for step in range(20, 24):
            store.write(record(step))
        store.close("finished", None)
    check_rows(open_run(open_place / "run").to_arrow("gradient"), range(24))
    assert not list((open_place / "run").rglob("*.arrow"))


def test_a_part_that_cannot_be_compacted_stays_readable(tmp_path, caplog):
    store = small_parts()
    store.open(header(tmp_path / "run"))
    for step in range(3):
        store.write(record(step, time=0.0))
    (tmp_path / "run" / "rank0" / "gradient" / "part-000001.parquet.tmp").mkdir(parents=True)
    store.write(record(3, time=0.0))
    store.close("finished", None)
    assert any("could not be compacted" in warning for warning in warnings_of(caplog))
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), range(4))
