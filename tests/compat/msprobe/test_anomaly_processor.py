import json

import pytest

from vario.compat.msprobe.anomaly_processor import main


def write_anomalies(folder, steps):
    place = {"micro_step": 0, "pp_stage": 0, "vpp_stage": 0, "call_id": 0}
    found = {f"w{step}": {"step": step, "tag_name": f"0:w{step}/rank0/actv", **place} for step in steps}
    (folder / "rank0").mkdir(parents=True)
    (folder / "rank0" / "anomaly.json").write_text(json.dumps(found))


def found_steps(folder):
    return [entry["step"] for entry in json.loads((folder / "anomaly_analyse.json").read_text()).values()]


@pytest.mark.parametrize(("text", "steps"), [("2", [2]), ("2,3", [2, 3]), ("[2, 3]", [2, 3]), ("[]", [1, 2, 3])])
def test_steps_are_written_as_one_likes(tmp_path, text, steps):
    write_anomalies(tmp_path, [1, 2, 3])
    assert main(["-d", str(tmp_path), "-s", text]) == 0
    assert found_steps(tmp_path) == steps


@pytest.mark.parametrize("text", ["True", "2.5", "[2, 'x']", "{2: 3}"])
def test_what_is_no_step_is_refused(tmp_path, capsys, text):
    write_anomalies(tmp_path, [1])
    assert main(["-d", str(tmp_path), "-s", text]) == 2
    assert "--step_list: expected steps such as 2 or 2,3" in capsys.readouterr().err


def test_a_folder_too_high_up_is_answered_with_the_right_one(tmp_path, capsys):
    write_anomalies(tmp_path / "anomaly_detected", [1])
    assert main(["-d", str(tmp_path)]) == 2
    inner = tmp_path / "anomaly_detected"
    assert capsys.readouterr().err == f"no rank*/anomaly.json in {tmp_path}; did you mean {inner}?\n"
    assert not (tmp_path / "anomaly_analyse.json").exists()


def test_a_folder_without_any_is_an_error(tmp_path, capsys):
    assert main(["-d", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"no rank*/anomaly.json in {tmp_path}\n"


@pytest.mark.parametrize(
    ("steps", "words"), [([], "No anomalies."), ([1], "1 anomaly is in "), ([1, 2], "2 anomalies are in ")]
)
def test_the_last_line_counts_them(tmp_path, capsys, steps, words):
    write_anomalies(tmp_path, steps)
    assert main(["-d", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(words)
