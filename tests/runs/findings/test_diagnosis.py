"""The first cause of small real trainings that go wrong, in one paragraph."""

import pytest
import torch
from torch import nn

import vario
from little_trainings import break_a_weight, train
from vario import ConfigError
from vario.rules import rule
from vario.runs.findings.replay import warn_of_failure


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("diagnosed")


@pytest.fixture(scope="module")
def broken(folder):
    return vario.open_run(train(folder / "broken", steps=75, fault=break_a_weight, fault_step=60))


@pytest.fixture(scope="module")
def poisoned(folder):
    return vario.open_run(train(folder / "poisoned", steps=12, nan_step=8))


@pytest.fixture(scope="module")
def well(folder):
    return vario.open_run(train(folder / "well", steps=30))


def test_a_broken_weight_is_named_with_step_value_and_usual_range(broken):
    found = vario.diagnose(broken)
    assert (found.source, found.missing, found.replayed) == ("stored", "", ())
    assert (found.first.lead.step, found.first.place) == (60, "blocks.1.0")
    text = str(found)
    assert text.startswith("At step 60 ")
    for words in ("'blocks.1.0", "(rule ", "usual", "Followed by", "Likely cause: ", "Next: "):
        assert words in text
    assert "\n" not in text


def test_stored_alerts_say_the_same_as_a_replay(broken):
    assert vario.diagnose(broken, "stored").first == vario.diagnose(broken, "replay").first
    assert vario.diagnose(broken, "stored").source == "stored"


def test_a_nan_in_the_batch_is_told_from_one_inside_a_module(poisoned):
    found = vario.diagnose(poisoned)
    assert (found.first.lead.rule, found.first.lead.step) == ("non_finite", 8)
    assert found.onset.target == found.first.lead.target == "root:input"
    assert found.onset.usual.step == 7
    assert "the input of 'root' was already non-finite" in str(found)
    assert "At step 7 it was healthy" in str(found)
    assert "Followed by 'first:input'" in str(found)


def test_a_nan_inside_a_module_says_that_its_inputs_were_finite(folder):
    def poison(model):
        model.blocks[1][0].weight[0, 0] = float("nan")

    options = {"quantities": ["activation"], "fault": poison, "fault_step": 6}
    found = vario.diagnose(vario.open_run(train(folder / "inside", steps=9, **options)))
    assert found.first.lead.target == "blocks.1.0:output"
    assert "The inputs of that module were finite: it happened inside." in str(found)


def test_nothing_found_says_what_was_looked_at(well):
    found = vario.diagnose(well)
    assert found.first is None
    assert str(found).startswith(f"Nothing found during training: {len(found.rules)} rules checked 30 steps up to 29")
    assert "activation" in str(found)
    replayed = vario.diagnose(well, "replay")
    assert str(replayed).startswith(f"Nothing found: {len(replayed.rules)} rules were replayed over 30 steps up to 29")


def test_a_run_watched_without_rules_is_replayed_with_all_and_says_so_when_it_is_not(folder):
    run = vario.open_run(train(folder / "no_rules", steps=12, nan_step=8, rules=False))
    assert run.alerts == []
    found = vario.diagnose(run)
    assert found.first.lead.rule == "non_finite"
    assert (found.source, found.missing) == ("replay", "no rules ran during training")
    assert "no rules ran during training" in str(vario.diagnose(run, "stored"))


def test_a_replay_uses_the_rules_a_run_was_watched_with(folder):
    rules = {"non_finite": False, "drift": {"gradient": 1e9}}
    run = vario.open_run(train(folder / "chosen", steps=12, nan_step=8, rules=rules))
    assert "non_finite" not in vario.diagnose(run).rules
    assert not [alert for alert in vario.check(run).alerts if alert.rule == "non_finite"]
    assert vario.check(run, ["non_finite"]).incidents


def test_a_run_without_steps_has_nothing_to_find(folder):
    run = vario.open_run(train(folder / "empty", steps=0))
    assert "Nothing recorded yet" in str(vario.diagnose(run))


def test_an_unknown_source_is_refused(well):
    with pytest.raises(ConfigError, match="source: expected"):
        vario.diagnose(well, "guess")


def test_alerts_stored_live_are_those_of_a_replay(broken):
    live, later = broken.alerts, vario.check(broken, replay=True).alerts
    assert [alert.to_json() for alert in live] == [alert.to_json() for alert in later]
    assert live


def test_an_early_note_does_not_hide_a_later_page(folder):
    run = vario.open_run(train(folder / "late", steps=70, nan_step=65))
    assert vario.diagnose(run).first.severity == "page"
    assert vario.diagnose(run).first.lead.step == 65


def test_alerts_of_steps_that_are_trained_anew_are_taken_back(folder):
    train(folder / "again", steps=12, nan_step=8)
    assert vario.open_run(folder / "again").alerts[0].step == 8
    train(folder / "again", steps=10, resume=True, first_step=5)
    run = vario.open_run(folder / "again")
    assert run.last_step == 14
    assert (run.alerts, run.incidents) == ([], [])


def test_a_rule_that_raises_is_left_out_and_named(folder, caplog):
    @rule("limit")
    def careless(step):
        """Never works."""
        raise ZeroDivisionError("no steps")

    run = vario.open_run(folder / "poisoned")
    with pytest.raises(ZeroDivisionError):
        vario.check(run, [careless, "non_finite"])
    found = vario.check(run, [careless, "non_finite"], failed=warn_of_failure)
    assert found.incidents
    assert "rule careless failed and was skipped: ZeroDivisionError: no steps" in caplog.text


def lose(folder):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with vario.watch(model, optimizer, directory=folder, name="run"):
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        raise ValueError("lost")


def test_nothing_found_in_a_run_that_crashed_says_that_it_did(tmp_path):
    with pytest.raises(ValueError, match="lost"):
        lose(tmp_path)
    assert "The run crashed, though: ValueError: lost" in str(vario.diagnose(vario.open_run(tmp_path / "run")))
