"""rules, check, diagnose, changes, diff and follow, as they are typed."""

import contextlib
import json
import re
import shlex

import numpy as np
import pytest

from little_trainings import break_a_weight, scale_a_weight, train
from vario.cli import main, make_parser
from vario.cli.commands import command_names, load
from vario.rules.api.alerts import Incident
from vario.statistics import STATISTICS


def answer(capsys, *words, code=0):
    assert main(list(words)) == code, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *words):
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a training that is well and one that breaks."""
    place = tmp_path_factory.mktemp("trained") / "vario_runs"
    train(place / "well", steps=30)
    train(place / "broken", steps=75, fault=break_a_weight, fault_step=60)
    return place


@pytest.fixture
def here(trained, run_folder, monkeypatch):
    monkeypatch.chdir(trained.parent)
    return trained


def test_rules_are_listed_with_kind_severity_and_summary(run_folder, capsys):
    listed = answer(capsys, "rules")
    assert "non_finite" in listed
    assert "ranks together" in listed
    assert "Why:" not in listed
    rows = {row["name"]: row for row in json.loads(answer(capsys, "rules", "--json"))}
    assert rows["grad_spike"]["options"]["threshold"] == 6.5
    assert rows["replica_desync"]["over"] == "ranks"
    assert (rows["non_finite"]["kind"], rows["non_finite"]["severity"]) == ("exact", "page")
    assert rows["non_finite"]["origin"] == "vario.rules.numerics.non_finite"


def test_a_rule_that_is_named_is_explained(run_folder, capsys):
    said = answer(capsys, "rules", "GradSpike")
    for words in ("Why: ", "Next: ", "Options: threshold = 6.5"):
        assert words in said
    assert "non_finite" not in said
    assert "Did you mean 'non_finite'?" in refused(capsys, "rules", "nonfinite")


def test_commands_that_rules_advise_can_be_typed(run_folder, capsys):
    advised = 0
    for row in json.loads(answer(capsys, "rules", "--json")):
        for command in re.findall(r"`vario ([^`]+)`", row["next"]):
            name, *words = shlex.split(command.replace("--rank RANK", "--rank 1"))
            arguments = make_parser(name, load(name)).parse_args(words)
            assert getattr(arguments, "statistic", None) in (None, "norm", *STATISTICS.names()), command
            advised += 1
    assert advised > 10


def test_rules_are_parts_like_others(run_folder, capsys):
    rows = json.loads(answer(capsys, "parts", "--kind", "rules", "--json"))
    found = {row["name"]: row for row in rows}
    assert found["non_finite"]["doc"].startswith("A NaN or Inf")


def test_a_check_that_finds_nothing_ends_with_0(here, capsys):
    assert answer(capsys, "check", "well").startswith("Nothing found: ")


def test_a_check_that_finds_something_ends_with_1_and_says_what_where_and_why(here, capsys):
    said = answer(capsys, "check", "broken", code=1)
    for words in ("step 60", "blocks.1.0:output", "seen", "cause", "next", "also", "1 incident: "):
        assert words in said
    found = json.loads(answer(capsys, "check", "broken", "--json", code=1))
    (incident,) = found["incidents"]
    assert (incident["lead"]["step"], incident["place"]) == (60, "blocks.1.0")
    assert Incident.from_json(incident).lead.step == 60
    assert found["num_steps"] == 75
    assert (found["source"], found["missing"], found["replayed"]) == ("stored", "", [])
    assert "Found during training." in said
    again = json.loads(answer(capsys, "check", "broken", "--replay", "--json", code=1))
    assert (again["source"], again["replayed"]) == ("replay", list(again["rules"]))
    assert again["incidents"] == found["incidents"]
    assert "Found by replaying the rules" in answer(capsys, "check", "broken", "--replay", code=1)
    every = answer(capsys, "check", "broken", "--all", code=1)
    assert all(alert["rule"] in every for alert in found["alerts"])


def test_rules_and_their_options_can_be_chosen(here, capsys):
    only = json.loads(answer(capsys, "check", "broken", "--rules", "activation_jump,non_finite", "--json", code=1))
    assert set(only["rules"]) == {"activation_jump", "non_finite"}
    assert only["source"] == "replay"
    assert {alert["rule"] for alert in only["alerts"]} == {"activation_jump"}
    words = ["--rule", "activation_jump", "--set", "activation_jump.factor=1e9", "--json"]
    assert json.loads(answer(capsys, "check", "broken", *words))["rules"]["activation_jump"]["factor"] == 1e9
    (here.parent / "vario.toml").write_text("[rules.activation_jump]\nfactor = 1e9\n")
    chosen = json.loads(answer(capsys, "check", "broken", "--config", "vario.toml", "--json", code=1))["rules"]
    assert chosen["activation_jump"]["factor"] == 1e9
    assert "non_finite" in chosen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "broken", "--rules", "grad_spik"], "Did you mean 'grad_spike'?"),
        (["check", "broken", "--set", "grad_spike.treshold=3"], "rules.grad_spike: unknown 'treshold'. Did you mean"),
        (["check", "broken", "--set", "threshold=3"], "Expected RULE.OPTION=VALUE"),
        (["check", "broken", "--set", "grad_spike.threshold=much"], "Expected a number, true or false"),
        (["check", "broken", "--rules", "drift", "--set", "grad_spike.factor=3"], "is not in use"),
        (["check", "broken", "--rules", "drift", "--config", "x.toml"], "cannot be combined with --rules"),
        (["check", "brokn"], "Did you mean 'broken'?"),
        (["diagnose", "broken", "--replay", "--stored"], "not allowed with"),
        (["changes", "broken", "--quantity", "wieght"], "Did you mean 'weight'?"),
        (["changes", "broken", "--top", "0"], "--top: expected"),
        (["diff", "broken", "well", "--rename", "x"], "Expected 'old=>new'"),
        (["diff", "broken", "well", "--quantity", "wieght"], "Did you mean 'weight'?"),
        (["follow", "nowhere"], "no such folder"),
        (["follow", "vario_runs", "--stall", "0"], "--stall: expected a number above 0"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(here, capsys, words, message):
    assert message in refused(capsys, *words)


def test_the_diagnosis_is_one_paragraph(here, capsys):
    said = answer(capsys, "diagnose", "broken")
    assert "At step 60 " in said
    assert "Found during training." in said
    assert "Found by replaying the rules" in answer(capsys, "diagnose", "broken", "--replay")
    found = json.loads(answer(capsys, "diagnose", "broken", "--json"))
    assert found["text"].startswith("At step 60 ")
    assert found["first"]["lead"]["step"] == 60
    assert found["source"] == "stored"
    assert answer(capsys, "diagnose", "broken", "--stored") == said
    assert answer(capsys, "diagnose", "well").startswith("Nothing found during training: ")


def test_report_and_ls_tell_of_incidents(here, capsys):
    said = answer(capsys, "report", "broken")
    assert "Root cause (1 incident)" in said
    assert "Healthy" not in said
    well = answer(capsys, "report", "well")
    assert "Root cause" not in well
    assert "Healthy" in well
    listed = {row["name"]: row["num_incidents"] for row in json.loads(answer(capsys, "ls", "--json"))}
    assert listed == {"well": 0, "broken": 1}


def test_what_changed_is_a_line_each(here, capsys):
    said = answer(capsys, "changes", "broken", "--last", "15", "--top", "3")
    assert "blocks.1.0" in said
    assert "series compared, up to step 74" in said
    found = json.loads(answer(capsys, "changes", "broken", "--last", "15", "--top", "3", "--json"))
    assert len(found["changes"]) == 3
    assert found["changes"][0]["step"] == 60


@pytest.mark.parametrize(("old", "new", "rest"), [("rank", "changes", "--json"), ("watch", "follow", "--help")])
def test_commands_are_found_under_the_names_they_had(here, capsys, old, new, rest):
    answers = []
    for name in (new, old):
        with contextlib.suppress(SystemExit):  # what --help ends with
            assert main([name, "broken", rest]) == 0
        answers.append(capsys.readouterr())
    assert answers[0].out == answers[1].out
    assert answers[0].out
    assert f"`vario {old}` is deprecated: use `vario {new}`." in answers[1].err
    assert old not in command_names()


def test_two_runs_are_compared(here, capsys):
    train(here / "other", steps=75, fault=scale_a_weight, fault_step=60)
    said = answer(capsys, "diff", "broken", "other")
    assert "They diverge at step 60: activation of 'blocks.1.0:output'" in said
    assert "largest differences at the end" in said
    found = json.loads(answer(capsys, "diff", "broken", "other", "--quantity", "weight", "--json"))
    assert (found["divergence"]["step"], found["noise"]) == (60, "none")


def test_one_look_at_a_run_writes_nothing_but_its_own_folder(here, capsys):
    before = {path for path in (here / "broken").rglob("*") if path.is_file()}
    said = answer(capsys, "follow", "vario_runs/broken", "--once", "--all", "--json")
    (incident,) = [json.loads(line) for line in said.splitlines()]
    assert (incident["event"], incident["lead"]["step"]) == ("incident", 60)
    after = {path for path in (here / "broken").rglob("*") if path.is_file()}
    assert {str(path.relative_to(here / "broken")) for path in after - before} == {
        "watch/alerts.jsonl",
        "watch/incidents.jsonl",
    }
    # What the ranks found by themselves is told without --all, and the run is over.
    assert ": step 60: activation of 'blocks.1.0:output'" in answer(capsys, "follow", "vario_runs/broken")
    assert answer(capsys, "follow", "vario_runs", "--all-runs") == ""


def test_what_the_watcher_finds_is_sent_where_the_config_says(here, capsys):
    (here.parent / "told.toml").write_text('[notify]\ncommand = "cat > told.json"\nleast = "note"\n')
    answer(capsys, "follow", "vario_runs/broken", "--once", "--all", "--config", "told.toml")
    assert "blocks.1.0:output" in (here.parent / "told.json").read_text()


def test_an_imported_run_is_checked_like_any_other(run_folder, capsys):
    folder = run_folder / "monitor_output" / "Dec03_21-34-40-rank0-0a1b2c3d"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    header = "vpp_stage,name,step,norm,mean,nans,shape,dtype\n"
    for step in range(70):
        rows = ""
        for number in range(6):
            norm = np.exp(rng.normal(0, 0.05)) * (50 if step == 60 and number == 3 else 1)
            rows += f'0,layers.{number}.weight,{step},{norm},0.001,0,"[8, 8]",torch.float32\n'
        (folder / f"grad_unreduced_{step}-{step}.csv").write_text(header + rows)
        (folder / f"grad_reduced_{step}-{step}.csv").write_text(header + rows)
    answer(capsys, "import", "--from", "msprobe", "monitor_output", "--name", "old")
    found = json.loads(answer(capsys, "check", "old", "--json", code=1))
    assert {(one["lead"]["step"], one["place"]) for one in found["incidents"]} == {(60, "layers.3.weight")}
    assert "layers.3.weight" in answer(capsys, "changes", "old", "--last", "15")
    assert "At step 60" in answer(capsys, "diagnose", "old")
