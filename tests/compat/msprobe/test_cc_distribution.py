"""`cc_distribution` through a TrainerMon on two ranks: rows, call lines, the log, and stopping after it."""

import json
from pathlib import Path

import communicating
import pytest
import reading

import training
import vario
from starting import run_ranks
from vario.compat.msprobe.importing import import_msprobe

HERE = Path(__file__).parent
SOURCE = (HERE / "communicating.py").read_text().splitlines()
LINE = next(number for number, text in enumerate(SOURCE, 1) if text.endswith(communicating.LINE) and "dist." in text)
CONFIG = {"ops": ["norm", "max"], "ndigits": 12}
JOBS = {
    "outputs": {**CONFIG, "cc_distribution": {"enable": True}},
    "line": {
        **CONFIG,
        "mg_direction": True,
        "cc_distribution": {
            "enable": True,
            "cc_codeline": [rf"communicating\.py\[{LINE}\]   main"],
            "cc_pre_hook": True,
        },
    },
    "log": {**CONFIG, "module_ranks": [1], "cc_distribution": {"enable": True, "cc_log_only": True}},
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """All jobs in one launch; `job(name, rank)` gives the folder and what that rank said."""
    folder = tmp_path_factory.mktemp("communicating")
    done = run_ranks([HERE / "communicating.py", folder, json.dumps(JOBS)])
    assert done.returncode == 0, done.stderr[-4000:]
    return lambda name, rank=0: (folder / name, json.loads((folder / name / f"said{rank}.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_outputs_are_rows_of_the_file_other_and_its_columns_fit_their_header(job, rank):
    out, said = job("outputs", rank)
    header, _ = reading.files(out, rank)["other_0-0.csv"]
    assert header == ["vpp_stage", "name", "step", "norm", "max", "shape", "dtype"]
    rows = reading.rows(out, "other", rank)
    assert {row["vpp_stage"] for row in rows} == {"0"}
    assert {row["name"].rpartition(".")[2] for row in rows} == {"output"}
    shared = [row for row in rows if row["name"] == f"all_reduce@communicating.py[{LINE}].output"]
    assert [int(row["step"]) for row in shared] == [0, 1, 2]
    assert [float(row["norm"]) for row in shared] == pytest.approx([after for _, after in said["shown"]], rel=1e-6)
    assert {(row["shape"], row["dtype"]) for row in shared} == {("[2]", "torch.float32")}
    # DDP's reducer, which calls from C++, is on the line of its backward.
    assert len({row["name"] for row in rows if row["name"].startswith("all_reduce@")}) == 2


@pytest.mark.slow
def test_cc_codeline_chooses_lines_and_cc_pre_hook_adds_inputs(job):
    out, said = job("line", 1)
    rows = [row for row in reading.rows(out, "other", 1) if "@" in row["name"]]
    name = f"all_reduce@communicating.py[{LINE}]"
    assert {row["name"] for row in rows} == {f"{name}.input", f"{name}.output"}
    inputs = [float(row["norm"]) for row in rows if row["name"] == f"{name}.input"]
    assert inputs == pytest.approx([before for before, _ in said["shown"]], rel=1e-6)


@pytest.mark.slow
def test_the_log_is_printed_after_the_second_step_on_the_first_selected_rank(job):
    out, _ = job("outputs")
    calls = json.loads((out / "stderr0.txt").read_text().partition("of the first 2 steps:\n")[2])
    call = calls[f"all_reduce@communicating.py[{LINE}]"]
    assert (call["operation"], call["dtype"], call["bytes"], call["group"]) == ("all_reduce", "float32", 8, [0, 1])
    assert call["calls"] == 2
    assert f"communicating.py[{LINE}]   main;" in call["stack"]
    assert "of the first 2 steps" not in (out / "stderr1.txt").read_text()


@pytest.mark.slow
def test_log_only_prints_records_nothing_and_stops_every_rank_after_the_second_step(job):
    for rank in (0, 1):
        out, said = job("log", rank)
        assert "cc_log_only: the calls of two steps are printed. Training stops here as requested" in said["stopped"]
        assert len(said["shown"]) == 2
        assert ("of the first 2 steps" in (out / f"stderr{rank}.txt").read_text()) == (rank == 1)
    assert reading.files(out, 1) == {}


@pytest.mark.slow
def test_the_rows_can_be_imported(job, tmp_path):
    out, _ = job("line")
    import_msprobe(out, tmp_path / "run")
    run = vario.open_run(tmp_path / "run")
    assert f"all_reduce@communicating.py[{LINE}].output" in run.targets()


def test_one_process_has_nobody_to_talk_to(tmp_path, monkeypatch, caplog):
    out = tmp_path / "out"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(out))
    config = {"wg_distribution": True, "cc_distribution": {"enable": True}}
    training.train({"monitor": "vario", "out": str(out), "config": config})
    assert "cc_distribution: there is only one process" in caplog.text
    assert reading.steps(out, "grad_reduced") == [0, 1, 2]
