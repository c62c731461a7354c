"""What a diagnosis weighs as the reason of an incident, and what it looked at."""

import json

import pytest

import vario
from little_trainings import break_a_weight, regress, train
from vario import ConfigError
from vario.cli import main
from vario.rules import rule


def reasons(run):
    found = vario.diagnose(run).hypotheses
    assert 1 <= len(found) <= 3
    assert [reason.share for reason in found] == sorted((reason.share for reason in found), reverse=True)
    return {reason.name: reason for reason in found}


def test_a_rate_that_jumps_is_the_schedule(tmp_path):
    def raise_rate(step, optimizer, x):
        if step == 70:
            optimizer.param_groups[0]["lr"] *= 30
        return x

    found = reasons(regress(tmp_path / "rate", before=raise_rate))
    assert next(iter(found)) == "schedule"
    assert any("the learning rate changed from 0.02 to 0.6" in text for text in found["schedule"].evidence)
    assert "'lr*'" in found["schedule"].look


def test_a_module_whose_input_was_as_before_is_named_for_it(tmp_path):
    run = vario.open_run(train(tmp_path / "module", steps=75, fault=break_a_weight, fault_step=60))
    found = reasons(run)
    assert next(iter(found)) == "module"
    assert any("the input of 'blocks.1.0' (RMS) was as before at step 60" in text for text in found["module"].evidence)
    assert "blocks.1.0:*" in found["module"].look


def test_an_input_that_changed_is_the_data(tmp_path):
    def enlarge(step, optimizer, x):
        return x * 20 if step >= 70 else x

    found = reasons(regress(tmp_path / "input", before=enlarge))
    assert next(iter(found)) == "data"
    assert any("the model's input ('root:input', RMS) was 20." in text for text in found["data"].evidence)


def test_labels_that_change_are_weighed_against_data_that_did_not(tmp_path):
    def turn(step, y):
        return -2 * y if step >= 70 else y

    found = reasons(regress(tmp_path / "labels", wanted=turn))
    assert "labels" in list(found)[:2]
    assert any("was as before" in text for text in found["data"].against) if "data" in found else True
    assert any("was as before" in text for text in found["labels"].evidence)


def test_state_that_was_not_loaded_is_the_resume_or_the_optimizer(tmp_path):
    train(tmp_path / "again", steps=60, quantities=["gradient", "weight", "activation", "update"])
    train(tmp_path / "again", steps=40, resume=True, lr=0.05, quantities=["gradient", "weight", "activation", "update"])
    run = vario.open_run(tmp_path / "again")
    diagnosis = vario.diagnose(run)
    assert diagnosis.first is not None
    found = {reason.name: reason for reason in diagnosis.hypotheses}
    assert set(list(found)[:2]) & {"resume", "optimizer", "schedule"}
    assert any("training was resumed at step 60" in text for text in found["resume"].evidence)


def test_nothing_is_said_of_what_was_not_recorded(tmp_path):
    found = vario.diagnose(vario.open_run(train(tmp_path / "few", steps=12, nan_step=8, quantities=["gradient"])))
    texts = [text for reason in found.hypotheses for text in (*reason.evidence, *reason.against)]
    assert texts
    assert not [text for text in texts if "root:input" in text or "as before" in text]


def test_json_and_terminal_have_the_hypotheses(tmp_path, capsys):
    train(tmp_path / "nan", steps=12, nan_step=8)
    assert main(["diagnose", str(tmp_path / "nan"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hypotheses"][0]["name"] == "data"
    assert set(found["hypotheses"][0]) == {"name", "title", "share", "evidence", "against", "look"}
    assert found["telling_apart"].startswith("To tell data from ")
    assert main(["diagnose", str(tmp_path / "nan")]) == 0
    text = capsys.readouterr().out
    assert "Hypotheses" in text
    assert "To tell data from " in text


def test_a_healthy_run_has_no_hypotheses(tmp_path):
    found = vario.diagnose(vario.open_run(train(tmp_path / "well", steps=20)))
    assert (found.hypotheses, found.telling_apart) == ((), "")


def test_a_rule_of_ones_own_points_to_a_hypothesis():
    @rule("limit")
    def too_warm(step):
        """A device that is too warm.

        Points to: hardware 4, data 1
        """
        return ()

    assert too_warm.points("tensor") == {"hardware": 4.0, "data": 1.0}
    with pytest.raises(ConfigError, match="unknown 'dada'"):

        @rule("limit")
        def misspelled(step):
            """A rule.

            Points to: dada 1
            """
            return ()
