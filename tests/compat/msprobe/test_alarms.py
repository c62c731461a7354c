"""Alarms: what they find, how they say it, and the sorter that puts the first one first."""

import json
import subprocess
import sys

import numpy as np
import pytest
import reading
import torch

import training
from vario.compat.msprobe.alarms import MAX_LINES, Alarms, Place
from vario.compat.msprobe.anomaly_processor import main, sort_anomalies
from vario.compat.msprobe.blocks import Block, Rows
from vario.compat.msprobe.config import AlertRule

TURBULENCE = AlertRule("AnomalyTurbulence", 0.5)


def block(values, columns=("norm",), names=None, suffix="post_grad", prefix="grad_reduced"):
    table = np.array(values, dtype=float).reshape(len(values), -1)
    names = names or [f"0:w{row}" for row in range(len(values))]
    return Block(Rows(prefix, suffix, columns, names, None), table, None, list(range(len(values))))


def look(alarms, series, columns=("norm",)):
    for step, value in enumerate(series):
        alarms.look(block([value], columns), step)
        alarms.step_ended(step)


@pytest.fixture
def said(caplog):
    def messages():
        return [record.getMessage().removeprefix("> ") for record in caplog.records]

    return messages


def test_turbulence_in_its_own_words(said):
    look(Alarms([TURBULENCE], Place(), None), [1.0, 1.0, 1.6])
    assert said() == [
        "Rule AnomalyTurbulence reports anomaly signal in ('0:w0/rank0/post_grad', 'norm') at step 2, "
        "current value 1.6, history mean 1.0."
    ]


def test_the_mean_of_the_history_is_an_exponential_one(said):
    series = [1.0, 2.0, 4.0]
    look(Alarms([AlertRule("AnomalyTurbulence", 100.0)], Place(), None), series)
    assert said() == []
    look(Alarms([AlertRule("AnomalyTurbulence", 0.0)], Place(), None), series)
    mean = 0.99 * 1.0 + 0.01 * 2.0
    assert f"current value 4.0, history mean {mean}." in said()[-1]


def test_turbulence_looks_up_only_and_at_norm_and_mean_only(said):
    columns = ("norm", "mean", "max", "nans")
    alarms = Alarms([TURBULENCE], Place(), None)
    alarms.look(block([[1.0, -1.0, 1.0, 0.0]], columns), 0)
    alarms.look(block([[0.1, -0.1, 9.0, 9.0]], columns), 1)
    alarms.step_ended(1)
    assert said() == []
    alarms.look(block([[1.0, -9.0, 1.0, 0.0]], columns), 2)
    alarms.step_ended(2)
    assert len(said()) == 1
    assert "'mean')" in said()[0]


def test_one_nan_does_not_silence_a_series(said):
    look(Alarms([TURBULENCE], Place(), None), [1.0, float("nan"), float("inf"), 1.0, 5.0])
    assert [message.split("at step ")[1][0] for message in said()] == ["2", "4"]


def test_nan_is_found_in_a_count_of_nans_too(said):
    look(Alarms([AlertRule("AnomalyNan")], Place(), None), [0.0, 3.0, 0.0], columns=("nans",))
    assert len(said()) == 1
    assert "('0:w0/rank0/post_grad', 'nans') at step 1" in said()[0]


def test_nan_with_a_threshold_finds_large_values_of_either_sign(said):
    look(Alarms([AlertRule("AnomalyNan", 10.0)], Place(), None), [9.0, -11.0, float("inf"), float("nan")])
    assert [message.split("at step ")[1][0] for message in said()] == ["1", "2", "3"]
    look(Alarms([AlertRule("AnomalyNan")], Place(), None), [1e30, float("inf")])
    assert len(said()) == 3


def test_the_first_rule_that_fits_speaks(said):
    rules = [AlertRule("AnomalyNan", 10.0), TURBULENCE]
    look(Alarms(rules, Place(), None), [1.0, 20.0])
    look(Alarms(rules[::-1], Place(), None), [1.0, 20.0])
    assert [message.split()[1] for message in said()] == ["AnomalyNan", "AnomalyTurbulence"]


def test_a_storm_of_alarms_is_cut_short_and_the_first_rule_speaks_first(said, tmp_path):
    alarms = Alarms([AlertRule("AnomalyNan"), TURBULENCE], Place(), tmp_path)
    names = [f"0:w{number}" for number in range(100)]
    for step, values in enumerate(([1.0] * 100, [9.0] * 99 + [float("nan")])):
        alarms.look(block(values, names=names), step)
        alarms.step_ended(step)
    assert len(said()) == MAX_LINES + 1
    assert "Rule AnomalyNan reports anomaly signal in ('0:w99/" in said()[0]
    assert said()[-1] == (
        f"80 more anomalies at step 1 are not printed; all are in {tmp_path / 'rank0' / 'anomaly.json'}"
    )


def test_anomalies_are_kept_with_the_documented_keys(tmp_path):
    alarms = Alarms([TURBULENCE], Place(rank=3, pp_stage=1, group_mates=(1, 3)), tmp_path)
    for step, value in enumerate([1.0, 9.0]):
        alarms.look(block([0.0, value], names=["0:a", "1:layers.0.weight"]), step)
    alarms.close()
    content = json.loads((tmp_path / "rank3" / "anomaly.json").read_text())
    tag = "1:layers.0.weight/rank3/post_grad"
    assert content == {
        f"{tag}_step_1_call_1": {
            "rank": 3,
            "step": 1,
            "micro_step": 0,
            "pp_stage": 1,
            "vpp_stage": 1,
            "call_id": 1,
            "tag_name": tag,
            "message": f"Rule AnomalyTurbulence reports anomaly signal in ('{tag}', 'norm') at step 1, "
            "current value 9.0, history mean 1.0.",
            "group_mates": [1, 3],
        }
    }


def test_of_several_statistics_of_one_tag_the_last_is_recorded_and_all_are_told(tmp_path, said):
    alarms = Alarms([AlertRule("AnomalyNan")], Place(), tmp_path)
    alarms.look(block([[float("nan")] * 2], ("norm", "mean")), 0)
    alarms.step_ended(0)
    alarms.close()
    (entry,) = json.loads((tmp_path / "rank0" / "anomaly.json").read_text()).values()
    assert "'norm')" not in entry["message"]
    assert "'mean')" in entry["message"]
    assert len(said()) == 2


def test_the_next_run_does_not_erase_the_anomalies_of_the_last(tmp_path):
    for step in (1, 2):
        alarms = Alarms([AlertRule("AnomalyNan")], Place(), tmp_path)
        alarms.look(block([float("nan")]), step)
        alarms.close()
    content = json.loads((tmp_path / "rank0" / "anomaly.json").read_text())
    assert [entry["step"] for entry in content.values()] == [1, 2]


def test_a_damaged_file_is_set_aside(tmp_path, caplog):
    path = tmp_path / "rank0" / "anomaly.json"
    path.parent.mkdir()
    path.write_text('{"torn')
    Alarms([AlertRule("AnomalyNan")], Place(), tmp_path).close()
    assert json.loads(path.read_text()) == {}
    assert (path.parent / "anomaly.json.damaged").read_text() == '{"torn'
    assert "not valid JSON" in caplog.text


def anomaly(tag, step=0, micro_step=0, pp_stage=0, vpp_stage=0, call_id=0):
    return {
        "rank": pp_stage,
        "step": step,
        "micro_step": micro_step,
        "pp_stage": pp_stage,
        "vpp_stage": vpp_stage,
        "call_id": call_id,
        "tag_name": tag,
        "message": tag,
        "group_mates": [0, 1],
    }


def write_anomalies(folder, *anomalies):
    for number, found in enumerate(anomalies):
        path = folder / f"rank{found['rank']}" / "anomaly.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, f"{found['tag_name']}_{number}": found}))


def test_anomalies_are_sorted_as_a_step_runs_through_the_pipeline(tmp_path):
    expected = [
        anomaly("0:a/rank0/actv", step=1),
        anomaly("0:a/rank1/actv", step=1, pp_stage=1),
        anomaly("1:a/rank0/actv", step=1, vpp_stage=1),
        anomaly("0:b/rank1/actv_grad", step=1, pp_stage=1, call_id=7),
        anomaly("0:b/rank1/post_grad", step=1, pp_stage=1, call_id=8),
        anomaly("0:b/rank0/acc_grad", step=1, call_id=1),
        anomaly("0:b/rank0/exp_avg", step=1, call_id=0),
        anomaly("0:a/rank0/actv", step=1, micro_step=1),
        anomaly("0:a/rank1/actv", step=2, pp_stage=1),
    ]
    write_anomalies(tmp_path, *expected[::-1])
    assert list(sort_anomalies(tmp_path, topk=100).values()) == expected
    assert list(sort_anomalies(tmp_path, topk=2).values()) == expected[:2]
    assert list(sort_anomalies(tmp_path, steps=[2]).values()) == expected[-1:]


def test_the_sorter_writes_and_prints_the_first_anomalies(tmp_path):
    write_anomalies(tmp_path, *(anomaly(f"0:w{step}/rank0/actv", step=step) for step in range(12)))
    command = [sys.executable, "-m", "vario.compat.msprobe.anomaly_processor", "-d", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first = json.loads((tmp_path / "anomaly_analyse.json").read_text())
    assert [entry["step"] for entry in first.values()] == list(range(8))
    assert done.stdout.splitlines()[0] == "0:w0/rank0/actv"
    for option in ("-s", "--step_list", "--step"):
        assert main(["-d", str(tmp_path), "-o", str(tmp_path / "there"), "-k", "1", option, "[5, 6]"]) == 0
        (only,) = json.loads((tmp_path / "there" / "anomaly_analyse.json").read_text()).values()
        assert only["step"] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "0"], "--topk: expected a whole number of at least 1, got 0"),
        (["-s", "two"], "--step_list: expected steps such as 2 or 2,3 or '[2, 3]', got 'two'"),
        (["-d", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_the_sorter_refuses_what_it_cannot_use(tmp_path, capsys, arguments, message):
    assert main(["-d", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_nan_in_training_is_printed_and_dumped_with_the_forward_pass_first(tmp_path, monkeypatch, caplog):
    out = tmp_path / "out"
    config = {
        "wg_distribution": True,
        "xy_distribution": True,
        "ops": ["norm", "nans"],
        "alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": True},
    }
    job = {"monitor": "vario", "out": str(out), "config": config, "model": "gpt", "accumulate": 2, "steps": 4}
    models = []
    make = training.make_model
    monkeypatch.setattr(training, "make_model", lambda name: models.append(make(name)) or models[-1])

    def break_a_weight(step, monitor):
        if step == 1:
            with torch.no_grad():
                models[0][0].decoder.layers[1].proj.weight[0, 0] = float("nan")

    training.train(job, break_a_weight)
    assert "Rule AnomalyNan reports anomaly signal in" in caplog.text
    assert reading.steps(out, "actv") == [0, 1, 2, 3]
    (first,) = sort_anomalies(out / "anomaly_detected", topk=1).values()
    assert (first["step"], first["micro_step"], first["rank"]) == (2, 0, 0)
    assert first["tag_name"] == "0:decoder.layers.1.proj.output:0/rank0/actv"
