"""Where a TrainerMon's files go, and what becomes of them when disks, columns and directories change on the way."""

import os
import resource

import pytest
import reading
import torch
from plain_loop import perceptron, take_steps, watch

GRADIENTS = {"wg_distribution": True, "ops": ["norm", "min", "max"]}
ALARMS = {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.0}}], "dump": True}


@pytest.fixture
def out(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(folder))
    return folder


@pytest.fixture
def model():
    return perceptron()


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_columns_that_change_begin_a_part_of_their_own(out, model, optimizer):
    monitor = watch(out, {"wg_distribution": True, "step_count_per_record": 10}, model, optimizer)
    take_steps(model, optimizer, 2)
    monitor.ops = ["min", "max"]
    take_steps(model, optimizer, 2)
    monitor.ops = ["norm"]
    take_steps(model, optimizer, 1)
    monitor.close()
    found = {
        name: (header[3:-2], sorted({int(row[2]) for row in rows}), {len(row) - len(header) for row in rows})
        for name, (header, rows) in reading.files(out).items()
        if name.startswith("grad_reduced")
    }
    assert found == {
        "grad_reduced_0-9.csv": (["norm"], [0, 1, 4], {0}),
        "grad_reduced_0-9_part_1.csv": (["min", "max"], [2, 3], {0}),
    }


def test_a_changed_directory_changes_no_path(tmp_path, monkeypatch, model, optimizer):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "out")
    monitor = watch(tmp_path / "out", {**GRADIENTS, "alert": ALARMS}, model, optimizer)
    take_steps(model, optimizer, 4, lambda step: monkeypatch.chdir(tmp_path / "second"))
    monitor.close()
    assert list((tmp_path / "second").iterdir()) == []
    assert reading.steps(tmp_path / "first" / "out", "grad_reduced") == [0, 1, 2, 3]
    assert (tmp_path / "first" / "out" / "anomaly_detected" / "rank0" / "anomaly.json").exists()


def test_a_relative_config_is_followed_after_a_change_of_directory(tmp_path, monkeypatch, out, model, optimizer):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    monkeypatch.chdir(tmp_path)
    config = {**GRADIENTS, "dynamic_on": True, "collect_times": 2}
    monitor = watch(type(out)("out"), config, model, optimizer)
    monkeypatch.chdir("/")
    take_steps(model, optimizer, 4)
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [1, 2]


@pytest.mark.parametrize("torn", ["0,up.weight,", "0,up.weight,2", "0,up.wei", '0,up.weight,2,0.5,"[8'])
def test_a_line_torn_by_a_kill_is_dropped_when_the_run_goes_on(out, model, optimizer, torn):
    config = {**GRADIENTS, "step_count_per_record": 10}
    monitor = watch(out, config, model, optimizer)
    take_steps(model, optimizer, 3)
    monitor.close()
    path = reading.rank_folder(out) / "grad_reduced_0-9.csv"
    path.write_text(path.read_text() + torn)
    tag = path.parent.name.partition("-rank")[0]
    again = watch(out, {**config, "append_output": [tag, tag]}, model, optimizer, start_iteration=3)
    take_steps(model, optimizer, 2)
    again.close()
    header, rows = reading.read_csv(path)
    assert {len(row) for row in rows} == {len(header)}
    assert [row[2] for row in rows if row[1] == "up.weight"] == ["0", "1", "2", "3", "4"]


def test_a_disk_that_takes_half_a_block_ends_up_with_all_of_it_once(out, model, optimizer):
    monitor = watch(out, {**GRADIENTS, "step_count_per_record": 1000}, model, optimizer)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def shrink_and_grow(step):
        monitor._monitor.wait()
        if step == 2:
            size = (reading.rank_folder(out) / "grad_reduced_0-999.csv").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
        if step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    try:
        take_steps(model, optimizer, 9, shrink_and_grow)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monitor.close()
    for prefix in ("grad_reduced", "grad_unreduced"):
        steps = [int(row["step"]) for row in reading.rows(out, prefix) if row["name"] == "up.weight"]
        assert steps == list(range(9))
        assert {row["name"] for row in reading.rows(out, prefix)} == {
            "up.weight",
            "up.bias",
            "down.weight",
            "down.bias",
        }


@pytest.mark.parametrize("breaks_at", ["start", "later"])
def test_alarms_that_cannot_be_written_cost_no_rows(out, caplog, model, optimizer, breaks_at, monkeypatch):
    monkeypatch.setattr("vario.compat.msprobe.alarms.DUMP_SECONDS", 0.0)
    if breaks_at == "start":
        out.mkdir()
        (out / "anomaly_detected").write_text("a file where the folder would be")
    monitor = watch(out, {**GRADIENTS, "alert": ALARMS}, model, optimizer)

    def break_it(step):
        monitor._monitor.wait()
        if step == 0 and breaks_at == "later":
            os.rename(out / "anomaly_detected", out / "moved")
            (out / "anomaly_detected").write_text("a file where the folder was")

    take_steps(model, optimizer, 4, break_it)
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [0, 1, 2, 3]
    assert caplog.text.count("anomaly.json: cannot be written") == 1
