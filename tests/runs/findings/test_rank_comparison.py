"""The ranks of a run are compared once, when it has ended, by whoever opens it first."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import made_runs
import vario
from vario.cli import main
from vario.rules import RULES
from vario.runs.findings import rank_comparison
from vario.runs.findings.check import found_check, known_incidents

STEPS = 60
COMPARING = {entry.name for entry in RULES if entry.part.over == "ranks"}


def slow_forward(step, rank):
    return made_runs.record(step, forward_seconds=0.2 if rank == 1 else 0.1, step_seconds=0.3)


def write(path, ranks=2, steps=STEPS, close="finished", rules=None, record=slow_forward, **changes):
    """A job in which one rank is slow in forward, and every rank left the trace of rules."""
    rules = {entry.name: {} for entry in RULES} if rules is None else rules
    config = {**made_runs.header(path).config, "rules": rules}
    for rank in range(ranks):
        records = [record(step, rank) for step in range(steps)]
        made_runs.write_run(path, records, close=close, rank=rank, world_size=ranks, config=config, **changes)
        (path / f"rank{rank}" / "alerts.jsonl").touch()
    return path


def leads(incidents):
    return [(one.lead.rule, one.rank, one.lead.target) for one in incidents]


SLOW = [("straggler", 1, "forward_seconds")]


def files_of(folder):
    """What is stored of comparisons beside runs, with when it was written."""
    return {path: path.stat().st_mtime_ns for path in (folder / ".vario" / "ranks").glob("*")}


def forget():
    """Read again as another process would."""
    rank_comparison._kept.clear()


def test_the_first_reader_compares_and_the_others_read_what_it_stored(tmp_path):
    path = write(tmp_path / "job")
    inside = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert known_incidents(vario.open_run(path)) == []
    assert leads(vario.open_run(path).incidents) == SLOW
    first = files_of(tmp_path)
    assert len(first) == 1
    forget()
    assert leads(known_incidents(vario.open_run(path))) == SLOW
    assert leads(vario.open_run(path).incidents) == SLOW
    assert leads(vario.check(vario.open_run(path)).incidents) == SLOW
    assert [alert.rule for alert in vario.open_run(path).alerts] == ["straggler"]
    assert files_of(tmp_path) == first
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == inside


def test_readers_that_come_together_find_it_once(tmp_path):
    path = write(tmp_path / "job")
    with ThreadPoolExecutor(4) as readers:
        found = list(readers.map(lambda _: leads(vario.open_run(path).incidents), range(8)))
    assert found == [SLOW] * 8
    assert len(files_of(tmp_path)) == 1


def test_a_result_that_was_damaged_or_is_of_another_run_is_found_again(tmp_path):
    path = write(tmp_path / "job")
    assert leads(vario.open_run(path).incidents) == SLOW
    [file] = files_of(tmp_path)
    good = json.loads(file.read_text())
    for bad in (
        "",
        "[]",
        "{" * 10_000,
        json.dumps({**good, "alerts": [{"rule": 3}]}),
        json.dumps({**good, "stamp": ""}),
    ):
        file.write_text(bad)
        forget()
        assert leads(vario.open_run(path).incidents) == SLOW
        assert json.loads(file.read_text()) == good


def test_a_folder_in_which_nothing_can_be_written_is_compared_all_the_same(tmp_path):
    path = write(tmp_path / "job")
    (tmp_path / ".vario").write_text("in the way")
    assert leads(vario.open_run(path).incidents) == SLOW
    # In this process it is known now.
    assert leads(known_incidents(vario.open_run(path))) == SLOW


def test_a_run_that_is_resumed_is_compared_again(tmp_path):
    path = write(tmp_path / "job", steps=20)
    assert vario.open_run(path).incidents == []
    for rank in range(2):
        records = [slow_forward(step, rank) for step in range(20, 80)]
        config = vario.open_run(path).config
        made_runs.write_run(
            path, records, rank=rank, world_size=2, config=config, resume=True, first_step=20, started=1e9 + 1
        )
    assert leads(vario.open_run(path).incidents) == SLOW


def test_a_run_that_goes_on_is_compared_only_by_who_asks(tmp_path):
    path = write(tmp_path / "job", close=None)
    run = vario.open_run(path)
    assert run.state == "running"
    assert run.incidents == []
    assert found_check(run).missing == "ranks are not compared during training"
    assert leads(vario.check(run).incidents) == SLOW
    assert not files_of(tmp_path)


@pytest.fixture
def few(monkeypatch):
    """As if these runs were large."""
    monkeypatch.setattr(rank_comparison, "MOST_RANK_STEPS", STEPS)


@pytest.mark.usefixtures("few")
def test_what_would_take_long_is_left_out_and_the_command_for_it_is_named(tmp_path, capsys):
    path = write(tmp_path / "job")
    run = vario.open_run(path)
    assert run.incidents == []
    assert set(rank_comparison.compare_ranks(run).left_out) == COMPARING
    main(["diagnose", str(path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "5 rules that compare ranks would take long (60 steps of 2 ranks): `vario check` does that." in said
    assert main(["check", str(path)]) == 1
    assert "rank 1 is slow: forward takes 200 ms" in capsys.readouterr().out
    forget()
    assert leads(vario.open_run(path).incidents) == SLOW


def test_rules_whose_rows_are_few_run_though_others_have_many(tmp_path, monkeypatch):
    path = write(tmp_path / "job")
    monkeypatch.setattr(rank_comparison, "MOST_ROWS_BYTES", sum(map(os.path.getsize, path.rglob("scalar/*"))) + 1)
    found = rank_comparison.compare_ranks(vario.open_run(path))
    assert found.left_out == ("reduce_mismatch",)
    assert "straggler" in found.rules
    assert leads(vario.open_run(path).incidents) == SLOW
    check = found_check(vario.open_run(path))
    assert "straggler" in check.replayed
    assert "would take long" in check.missing


def test_only_what_the_rules_need_is_read_and_they_find_what_they_find_in_all_of_it(tmp_path):
    def record(step, rank):
        is_odd, differs = (step, rank) == (50, 2), (step, rank) == (30, 0)
        activations = {name: made_runs.tensor(step, name) * (100 if is_odd else 1) for name in made_runs.NAMES}
        sums = {f"{name}:weight": np.full(4, float(differs)) for name in made_runs.NAMES}
        frames = [
            made_runs.frame(step, "activation", tensors=activations),
            made_runs.frame(step, "checksum", list(sums), tensors=sums),
            made_runs.frame(step, "weight"),
        ]
        return made_runs.record(step, *frames, loss=1.0)

    parameters = [{"name": name, "shape": [4, 4], "dtype": "float32", "replicas": 0} for name in made_runs.NAMES]
    structure = {"modules": [], "parameters": parameters, "groups": [[0, 1, 2]]}
    path = write(tmp_path / "job", ranks=3, record=record, structure=structure)
    everything = vario.check(vario.open_run(path), sorted(COMPARING))
    found = vario.open_run(path).alerts
    assert {alert.rule for alert in found} >= {"rank_outlier", "replica_desync"}
    assert [alert.to_json() for alert in found] == [alert.to_json() for alert in everything.alerts]


def test_a_run_that_was_watched_without_rules_is_compared_only_on_request(tmp_path):
    path = write(tmp_path / "job", rules={})
    assert vario.open_run(path).incidents == []
    assert leads(vario.check(vario.open_run(path)).incidents) == SLOW


def test_a_list_of_runs_tells_what_was_found_and_compares_nothing(tmp_path, capsys):
    path = write(tmp_path / "job")
    main(["ls", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["num_incidents"] == 0
    assert not files_of(tmp_path)
    assert vario.open_run(path).incidents
    main(["ls", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["num_incidents"] == 1


def test_options_of_an_older_version_do_not_keep_a_rule_from_running(tmp_path):
    path = write(tmp_path / "job")
    header = json.loads((path / "run.json").read_text())
    header["config"]["rules"]["straggler"] = {"score": 0.8}
    (path / "run.json").write_text(json.dumps(header))
    assert leads(vario.open_run(path).incidents) == SLOW
