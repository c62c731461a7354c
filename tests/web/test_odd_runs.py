"""Runs that are unusual and yet possible: whatever their numbers, names and files are, each address answers."""

import json
import logging
import math
import os
import shutil
import time

import numpy as np
import pytest

import made_runs
from vario.runs import reader as reader_module
from vario.web.addresses import overview
from vario.web.addresses.overview import RunRows
from vario.web.served import Served

ODD_NAMES = (
    "new\nline",
    "tab\tbed",
    "\u202eright to left",
    "no\u00a0break",
    "a|b",
    "|",
    "a/b",
    "a%20b#c&d=?",
    "__proto__",
)


def write_constant(path, value, **changes):
    """A run whose loss, and whose elements, are a number by step."""
    records = [
        made_runs.record(
            step,
            made_runs.frame(step, tensors={name: np.full(2, value(step)) for name in made_runs.NAMES}),
            loss=value(step),
        )
        for step in range(6)
    ]
    return made_runs.write_run(path, records, **changes)


@pytest.mark.parametrize("total", [0.5, 0.0, -3.0, math.nan, math.inf])
def test_a_number_of_steps_that_cannot_be_is_none(serve, tmp_path, total):
    made_runs.write_run(tmp_path / "run", [made_runs.record(step, loss=1.0, total_steps=total) for step in range(3)])
    with serve(tmp_path) as client:
        found = client.get("/api/run", run="run")
        assert (found["step"], found["total_steps"], found["progress"]) == (2, None, None)
        assert [row["step"] for row in client.get("/api/runs")["runs"]] == [2]


def test_lines_of_alerts_that_no_rule_wrote_are_left_out_and_the_others_told(serve, tmp_path):
    made_runs.write_run(tmp_path / "run", [made_runs.record(step) for step in range(9)])
    good = made_runs.ALERT | {"rule": "from_the_future", "kind": "exact", "text": "something happened"}
    changes = [
        {"step": "x"},
        {"step": None},
        {"step": 1e400},
        {"step": 6.5},
        {"session": "x"},
        {"severity": "purple"},
        {"rule": None},
        {"quantity": 3},
        {"value": "much"},
        {"text": None},
    ]
    lines = [json.dumps(good), *(json.dumps(good | change) for change in changes), '{"step": 7, "ru', "[]", "null"]
    (tmp_path / "run" / "rank0" / "alerts.jsonl").write_text("\n".join([*lines, json.dumps(good | {"step": 10**6})]))
    with serve(tmp_path) as client:
        assert [alert["step"] for alert in client.get("/api/alerts", run="run")["alerts"]] == [5, 10**6]
        assert client.get("/api/run", run="run")["incidents"][0]["title"] == "something happened"


def test_where_the_norm_was_not_recorded_another_statistic_is_the_usual_one(serve, tmp_path):
    config = {"statistics": ["max"], "eps": 1e-8, "quantities": ["gradient"]}
    made_runs.write_run(tmp_path / "run", [made_runs.record(step) for step in range(3)], config=config)
    with serve(tmp_path) as client:
        (quantity,) = [found for found in client.get("/api/run", run="run")["quantities"] if found["name"] != "scalar"]
        usual = quantity["default_statistic"]
        assert client.get("/api/heat", run="run", format="json")["statistic"] == usual
        assert client.get("/api/series", run="run", series="gradient|head.weight|")["curves"][0]["statistic"] == usual
        assert client.ask("/api/live", run="run", quantity="gradient", cursor="0.0.0").status == 200


def test_finite_numbers_beyond_float32_stay_finite_in_a_heat_map(serve, tmp_path):
    write_constant(tmp_path / "run", lambda step: 1e150 * (-1) ** step)
    with serve(tmp_path) as client:
        heat = client.get("/api/heat", run="run", statistic="max", format="json")
        largest = float(np.finfo(np.float32).max)
        assert heat["values"][0] == [largest * (-1) ** step for step in range(6)]
        assert heat["bad"] == []
        assert heat["high"] == largest


def test_losses_at_both_ends_of_all_numbers_are_compared(serve, tmp_path):
    for name, loss in (("large", 1e300), ("small", 5e-324)):
        made_runs.write_run(tmp_path / name, [made_runs.record(step, loss=loss) for step in range(6)])
    with serve(tmp_path) as client:
        for a, b in (("large", "small"), ("small", "large")):
            assert "(far apart)" in client.get("/api/compare", a=a, b=b)["text"]


def test_every_name_that_is_listed_can_be_asked_for(serve, tmp_path):
    records = [
        made_runs.record(step, made_runs.frame(step, targets=ODD_NAMES), **dict.fromkeys(ODD_NAMES, 1.0))
        for step in range(3)
    ]
    made_runs.write_run(tmp_path / "run", records)
    with serve(tmp_path) as client:
        for quantity, statistic in (("gradient", "norm"), ("scalar", "value")):
            names = client.get("/api/targets", run="run", quantity=quantity)["targets"]
            assert sorted(names) == sorted(ODD_NAMES)
            for name in names:
                found = client.get("/api/series", run="run", series=f"{quantity}|{name}|{statistic}")
                assert [curve["target"] for curve in found["curves"]] == [name]
                assert client.get("/api/ranks", run="run", quantity=quantity, target=name)["curves"]


def spoil(path):
    content = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(content | {"world_size": "x"}))


@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_a_run_that_cannot_be_read_takes_no_other_from_the_list(tmp_path, seconds):
    for name in ("good", "odd"):
        made_runs.write_run(tmp_path / name, [made_runs.record(0)])
    spoil(tmp_path / "odd")
    found = RunRows(Served(tmp_path), seconds).read()
    assert [row["run"] for row in found["runs"]] == ["good"]
    assert [left.path for left in found["left_out"]] == ["odd"]


def test_a_damaged_run_is_told_of_in_every_answer_and_read_again_when_it_changes(tmp_path, caplog):
    made_runs.write_run(tmp_path / "run", [made_runs.record(0)])
    kept = (tmp_path / "run" / "run.json").read_bytes()
    spoil(tmp_path / "run")
    rows = RunRows(Served(tmp_path), 10.0)
    with caplog.at_level(logging.WARNING, "vario"):
        for _ in range(3):
            assert "run.json: 'world_size': expected a whole number" in rows.read()["left_out"][0].error
    assert not caplog.records  # the answer says it all
    (tmp_path / "run" / "run.json").write_bytes(kept)
    found = rows.read()
    assert ([row["run"] for row in found["runs"]], found["left_out"]) == (["run"], [])


def test_what_nobody_expected_of_a_run_is_told_in_the_log_once(tmp_path, caplog, monkeypatch):
    made_runs.write_run(tmp_path / "run", [made_runs.record(0)])
    monkeypatch.setattr(overview, "_row", lambda *_: [][1])
    rows = RunRows(Served(tmp_path), 10.0)
    with caplog.at_level(logging.WARNING, "vario"):
        for _ in range(3):
            assert "list index out of range" in rows.read()["left_out"][0].error
    assert len(caplog.records) == 1


def test_a_folder_whose_name_is_no_text_is_left_out_and_the_others_are_listed(serve, tmp_path):
    made_runs.write_run(tmp_path / "good", [made_runs.record(0)])
    shutil.copytree(os.fsencode(tmp_path / "good"), os.fsencode(tmp_path) + b"/caf\xe9")
    with serve(tmp_path) as client:
        found = client.get("/api/runs")
        assert [row["run"] for row in found["runs"]] == ["good"]
        assert found["left_out"] == [
            {"path": "caf?", "error": "its name is not valid UTF-8. Rename the folder."},
        ]


def test_a_command_with_bytes_that_are_no_text_is_shown(serve, tmp_path):
    made_runs.write_run(tmp_path / "run", [made_runs.record(0)], command=os.fsdecode(b"python caf\xe9.py"))
    with serve(tmp_path) as client:
        assert client.get("/api/settings", run="run")["command"] == "python caf?.py"


def test_each_rank_is_looked_at_as_often_however_many_there_are(serve, tmp_path, monkeypatch):
    looks = []
    listed = reader_module.quantities
    monkeypatch.setattr(reader_module, "quantities", lambda folder: looks.append(folder) or listed(folder))

    def looks_at(world_size):
        path = tmp_path / str(world_size)
        for rank in range(world_size):
            records = [made_runs.record(step, loss=1.0, step_seconds=1.0) for step in range(2)]
            made_runs.write_run(path / "run", records, rank=rank, world_size=world_size)
        with serve(path) as client:
            looks.clear()
            assert len(client.get("/api/ranks", run="run")["curves"]) == world_size
        return len(looks) / world_size

    assert looks_at(12) <= looks_at(3) + 1


def test_a_list_that_is_followed_tells_of_runs_that_went(tmp_path):
    for name in ("stays", "goes"):
        made_runs.write_run(tmp_path / name, [made_runs.record(0)])
    rows = RunRows(Served(tmp_path), 10.0)
    before = rows.read()["cursor"]
    assert rows.since(before) == {"runs": [], "gone": [], "is_whole": False}
    (tmp_path / "goes").rename(tmp_path / ".hidden")
    rows.read()
    assert rows.cursor != before
    assert rows.since(before) == {"runs": [], "gone": ["goes"], "is_whole": False}
    (tmp_path / ".hidden").rename(tmp_path / "goes")
    rows.read()
    back = rows.since(before)
    assert ([row["run"] for row in back["runs"]], back["gone"]) == (["goes"], [])
    everything = rows.since("of-another-server.3")
    assert (len(everything["runs"]), everything["is_whole"]) == (2, True)


def test_clocks_that_jump_leave_every_address_with_an_answer(serve, tmp_path):
    now = time.time()
    times = [now, 0.0, -1e9, 1e18, math.nan, math.inf, now - 1e6]
    records = [made_runs.record(step, time=times[step], loss=1.0) for step in range(len(times))]
    made_runs.write_run(tmp_path / "run", records, started=now + 1e6)
    with serve(tmp_path) as client:
        assert client.get("/api/run", run="run")["step"] == len(times) - 1
        (curve,) = client.get("/api/series", run="run", series="scalar|loss|value")["curves"]
        assert curve["times"][4:6] == [None, None]
        assert client.get("/api/changes", run="run")["last_step"] == len(times) - 1
