"""Alerts that ranks and a watching process stored are read back, each once and none that was taken back."""

import json

import pytest

import made_runs
import vario
from vario.rules.api.alerts import Alert, Incident
from vario.store.line_files import LineFile, take_back


def alert(step, rank=None, target="head.weight", rule="grad_spike", **changes):
    values = {"kind": "relative", "severity": "note", "quantity": "gradient", "value": 3.0, "text": f"{target} jumped"}
    return Alert(rule=rule, step=step, rank=rank, target=target, **{**values, **changes})


def write(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    for rank in range(2):
        made_runs.write_run(tmp_path / "run", [made_runs.record(step) for step in range(40)], rank=rank, world_size=2)
    return vario.open_run(tmp_path / "run")


def test_a_run_without_alerts_has_none(run):
    assert run.alerts == []
    assert run.incidents == []


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"value": 0.1, "low": 0.5, "high": 2.0}, "gradient drop"),
        ({"value": 9.0, "low": 0.5, "high": 2.0}, ""),
        ({"value": -4.0, "target": None}, "gradient drop"),
        ({"value": 4.0, "target": None}, ""),
        ({"value": 0.1, "low": 0.5, "rule": "activation_jump"}, ""),
    ],
)
def test_a_drop_that_was_stored_without_a_label_has_one(run, values, label):
    write(run.path / "rank0" / "alerts.jsonl", alert(20, 0, **values).to_json())
    assert [found.label for found in run.alerts] == [label]
    write(run.path / "rank0" / "alerts.jsonl", run.alerts[0].to_json())
    assert [found.label for found in run.alerts] == [label]


def test_ranks_that_tell_the_same_come_to_one_incident_without_a_rank(run):
    for rank in range(2):
        write(run.path / f"rank{rank}" / "alerts.jsonl", alert(20, rank).to_json(), alert(21, rank, "x").to_json())
    assert len(run.alerts) == 4
    (incident,) = run.incidents
    assert (incident.step, incident.rank, len(incident.alerts)) == (20, None, 4)


def test_what_a_rank_and_the_watcher_both_stored_counts_once(run):
    write(run.path / "rank1" / "alerts.jsonl", alert(20, 1).to_json())
    write(run.path / "watch" / "alerts.jsonl", {**alert(20, 1).to_json(), "session": 0}, alert(35, 0).to_json())
    assert [(found.step, found.rank) for found in run.alerts] == [(20, 1), (35, 0)]
    assert [incident.rank for incident in run.incidents] == [1, 0]


def test_a_torn_last_line_is_passed_over(run, caplog):
    path = run.path / "rank0" / "alerts.jsonl"
    write(path, alert(20, 0).to_json())
    path.write_text(path.read_text() + '{"rule": "grad_sp')
    assert len(run.alerts) == 1
    assert not caplog.records


def test_a_torn_line_between_others_is_named(run, caplog):
    path = run.path / "rank0" / "alerts.jsonl"
    line = json.dumps(alert(20, 0).to_json())
    path.write_text(f'{line}\n{{"ru\n{line.replace("20", "21", 1)}\n')
    assert [found.step for found in run.alerts] == [20, 21]
    assert "line 2: incomplete" in caplog.text


def test_a_line_of_another_make_is_named_and_left_out(run, caplog):
    write(run.path / "rank0" / "alerts.jsonl", {"step": 3, "rule": "grad_spike"}, alert(20, 0).to_json())
    assert [found.step for found in run.alerts] == [20]
    assert "skipped a line of alerts.jsonl" in caplog.text


def test_numbers_that_are_not_finite_survive(run):
    write(run.path / "rank0" / "alerts.jsonl", alert(20, 0, value=float("nan"), high=float("inf")).to_json())
    (found,) = run.alerts
    assert found.value != found.value
    assert found.high == float("inf")


def test_the_watchers_alerts_of_steps_trained_anew_are_taken_back(tmp_path):
    path = tmp_path / "run"
    made_runs.write_run(path, [made_runs.record(step) for step in range(30)])
    write(path / "watch" / "alerts.jsonl", *({**alert(step).to_json(), "session": 0} for step in (5, 25)))
    made_runs.write_run(path, [made_runs.record(step) for step in range(10, 20)], resume=True, first_step=10)
    assert [found.step for found in vario.open_run(path).alerts] == [5]


def test_a_rank_that_did_not_come_again_keeps_only_what_was_before(tmp_path):
    path = tmp_path / "run"
    for rank in range(2):
        made_runs.write_run(path, [made_runs.record(step) for step in range(30)], rank=rank, world_size=2)
        write(path / f"rank{rank}" / "alerts.jsonl", *(alert(step, rank).to_json() for step in (5, 25)))
    options = {"resume": True, "first_step": 10, "world_size": 2}
    made_runs.write_run(path, [made_runs.record(step) for step in range(10, 20)], **options)
    take_back(path / "rank0" / "alerts.jsonl", 10)
    assert [(found.step, found.rank) for found in vario.open_run(path).alerts] == [(5, 0), (5, 1)]


def test_what_a_rule_of_ones_own_meant_is_kept_as_it_was_told(run):
    found = alert(20, 0, rule="my_rule")
    told = Incident(20, 20, found, "note", "tensor", "head.weight", 0, "my cause", "my advice", (found,))
    write(run.path / "rank0" / "alerts.jsonl", found.to_json())
    write(run.path / "rank0" / "incidents.jsonl", told.to_json())
    (incident,) = run.incidents
    assert (incident.cause, incident.advice) == ("my cause", "my advice")


def test_a_line_file_keeps_each_line_once_and_mends_a_torn_end(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"st')
    for _ in range(2):
        file = LineFile(path)
        file.append({"step": 1})
        file.append({"step": 2})
        file.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    take_back(path, 2)
    assert path.read_text() == '{"step": 1}\n'
