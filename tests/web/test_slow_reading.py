"""A run that cannot be read in time costs its own answers, and those of no other run."""

import os
import shutil
import threading

import anyio
import pytest

import made_runs
from vario.web.reading import Readers, TooSlow


def test_what_takes_too_long_is_given_up_and_not_asked_again_before_it_has_ended():
    go_on = threading.Event()
    ended = threading.Event()

    def slow():
        go_on.wait()
        ended.set()

    async def ask():
        readers = Readers(1, seconds=1.0)  # on a busy machine even the good one takes a while
        with pytest.raises(TooSlow, match="bad: could not be read in"):
            await readers.read("bad", slow)
        # Its place is free again, though its thread still waits.
        assert await readers.read("good", lambda: 1) == 1
        with pytest.raises(TooSlow, match="an earlier request is still running"):
            await readers.read("bad", lambda: 2)
        go_on.set()
        await anyio.to_thread.run_sync(ended.wait)
        while True:
            try:
                return await readers.read("bad", lambda: 3)
            except TooSlow:
                await anyio.sleep(0)

    try:
        assert anyio.run(ask) == 3
    finally:
        go_on.set()


def test_a_pipe_in_one_run_leaves_the_list_and_the_others_as_they_are(serve, tmp_path):
    made_runs.write_run(tmp_path / "good", [made_runs.record(step) for step in range(4)])
    for inner in ("run.json", "rank0/rank.json", "rank0/structure.json", "rank0/scalar/part-000001.parquet"):
        name = inner.replace("/", "-")
        shutil.copytree(tmp_path / "good", tmp_path / name)
        (tmp_path / name / inner).unlink()
        os.mkfifo(tmp_path / name / inner)
    with serve(tmp_path) as client:
        rows = {row["run"]: row for row in client.get("/api/runs")["runs"]}
        assert rows["good"]["step"] == 3
        for name in os.listdir(tmp_path):
            answers = [client.ask(path, run=name).status for path in ("/api/run", "/api/model", "/api/settings")]
            assert answers == [200, 200, 200] if name == "good" else 400 in answers, name
        assert client.get("/api/heat", run="good", quantity="gradient", format="json")["first"]


def test_a_link_deep_in_a_run_is_not_read(serve, tmp_path):
    store = made_runs.small_parts(rollup_min_rows=8, bucket_steps=4)
    made_runs.write_run(tmp_path / "served" / "run", [made_runs.record(step) for step in range(12)], store)
    (rollup,) = (tmp_path / "served/run/rank0/outlines/gradient").iterdir()
    shutil.move(rollup, tmp_path / "private")
    rollup.symlink_to(tmp_path / "private")
    with serve(tmp_path / "served") as client:
        for path, asked in (
            ("/api/heat", {"quantity": "gradient"}),
            ("/api/series", {"series": "gradient|head.weight|"}),
        ):
            assert "not followed" in client.refused(path, run="run", **asked)["error"]
