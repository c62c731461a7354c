"""One source of incidents: whoever tells what was found in a run tells what was stored while it trained."""

import html
import json

import pytest
from web_client import serving, write_ranks

import made_runs
import vario
from little_trainings import train
from vario.cli import main
from vario.reports.summary import summarise
from vario.rules import RULES, Finding, rule
from vario.rules.api.alerts import SEVERITIES, STAGES, Alert, Incident
from vario.rules.api.wording import in_a_paragraph
from vario.store.line_files import take_back

NAN_STEP = 60


@rule("relative", stage="backward")
def restless(step):
    """Finds something every few steps, at another place each time.

    Cause: nobody knows

    Next: Sit down.
    """
    if step.number >= 20 and step.number % 6 == 2:
        yield Finding(f"step {step.number} is odd", "gradient", f"place.{step.number}", 1.0)


@pytest.fixture(scope="module")
def told():
    """The incidents that notices were sent of."""
    return []


@pytest.fixture(scope="module")
def path(tmp_path_factory, told):
    """A run in which notes go on until a NaN comes, found by rules of which one exists in this process alone."""
    options = {
        "rules": [*(found.part for found in RULES), restless],
        "notify": {"callback": told.append, "least": "note"},
    }
    return train(tmp_path_factory.mktemp("source") / "late", steps=80, nan_step=NAN_STEP, **options)


def head(incident):
    """What all readers have to tell alike."""
    lead = incident.lead
    return {
        "id": incident.id,
        "lead": (lead.rule, lead.step, lead.target),
        "severity": incident.severity,
        "cause": incident.cause,
        "stage": incident.stage,
        "next": incident.advice,
        "series": incident.chart,
    }


def shown_head(body):
    """The same of an incident as the server answers it."""
    return {key: body[key] for key in ("id", "severity", "cause", "stage", "next", "series")}


def without_lead(found):
    return {key: value for key, value in head(found).items() if key != "lead"}


def answered(capsys, *words):
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_report_check_diagnose_page_notebook_and_notices_tell_the_same_incidents(path, told, capsys):
    run = vario.open_run(path)
    stored = [head(incident) for incident in run.incidents]
    assert stored[0]["id"] == "step-20"
    assert (stored[0]["severity"], stored[0]["cause"], stored[0]["stage"]) == ("page", "nobody knows", "backward")
    assert [head(incident) for incident in vario.check(run).incidents] == stored
    assert [head(incident) for incident in vario.diagnose(run).incidents] == stored
    assert [head(incident) for incident in summarise(run).diagnosis.incidents] == stored
    for words in (["check", str(path)], ["diagnose", str(path)]):
        assert [head(Incident.from_json(one)) for one in answered(capsys, *words)["incidents"]] == stored
    # Each was told, and the one that became worse again: as it stands in the run.
    latest = {incident.id: incident for incident in told}
    assert [head(incident) for incident in latest.values()] == stored
    lines = (path / "rank0" / "incidents.jsonl").read_text().splitlines()
    assert [head(one) for one in {one.id: one for one in map(Incident.from_json, map(json.loads, lines))}.values()] == (
        stored
    )
    plain = [without_lead(incident) for incident in run.incidents]
    with serving(path.parent) as client:
        found = client.get("/api/alerts", run=path.name)
        assert [shown_head(one) for one in found["incidents"]] == plain
        assert [shown_head(one) for one in client.get("/api/run", run=path.name)["incidents"]] == plain
        (row,) = client.get("/api/runs")["runs"]
    assert found["source"] == "stored"
    severities = [incident["severity"] for incident in stored]
    assert row["incidents"] == {severity: severities.count(severity) for severity in SEVERITIES}
    first = vario.diagnose(run).first
    assert html.escape(in_a_paragraph(first)) in run._repr_html_()
    assert f"<strong>{first.severity}</strong>" in run._repr_html_()
    assert answered(capsys, "ls", str(path.parent))[0]["num_incidents"] == len(stored)


def test_what_became_urgent_long_after_it_began_is_urgent_for_every_reader(path, told):
    run = vario.open_run(path)
    assert [incident.severity for incident in told if incident.id == "step-20"] == ["note", "page"]
    (incident,) = [incident for incident in run.incidents if incident.id == "step-20"]
    assert (incident.raised_by.rule, incident.raised_by.step) == ("non_finite", NAN_STEP)
    assert {alert.incident for alert in incident.alerts} == {"step-20"}
    assert f"It became urgent at step {NAN_STEP}" in str(vario.diagnose(run))


def test_a_replay_is_asked_for_and_says_so(path, capsys):
    run = vario.open_run(path)
    found, again = vario.check(run), vario.check(run, replay=True)
    assert (found.source, found.missing, found.replayed) == ("stored", "", ())
    assert "restless" in found.rules
    assert (again.source, again.replayed) == ("replay", tuple(again.rules))
    # A rule of one's own is not known to whoever replays.
    assert "restless" not in again.rules
    assert again.incidents[0].lead.rule != "restless"
    assert vario.check(run, ["non_finite"]).source == "replay"
    assert main(["check", str(path)]) == 1
    assert "Found during training." in capsys.readouterr().out
    assert main(["check", str(path), "--rules", "non_finite"]) == 1
    assert "Found by replaying the rules over the stored steps." in capsys.readouterr().out
    assert main(["report", str(path)]) == 0
    assert "Found during training." in capsys.readouterr().out


def test_a_run_that_no_rule_looked_at_is_replayed_and_the_answer_says_why(tmp_path, capsys):
    path = train(tmp_path / "unwatched", steps=12, nan_step=8, rules=False)
    found = vario.check(vario.open_run(path))
    assert (found.source, found.missing) == ("replay", "no rules ran during training")
    assert main(["check", str(path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Found by replaying the rules over the stored steps, because no rules ran during training" in said
    with serving(tmp_path) as client:
        assert "No rules ran during training" in client.get("/api/alerts", run="unwatched")["remark"]


def test_rules_that_compare_ranks_run_on_top_of_what_is_stored(tmp_path):
    config = made_runs.header(tmp_path / "x").config
    write_ranks(tmp_path / "ranks", world_size=3)
    run = vario.open_run(tmp_path / "ranks")
    header = json.loads((run.path / "run.json").read_text())
    header["config"] = {**config, "rules": {found.name: {} for found in RULES}}
    (run.path / "run.json").write_text(json.dumps(header))
    assert vario.check(vario.open_run(run.path)).missing == "rules left no trace during training"
    (run.path / "rank0" / "alerts.jsonl").touch()
    found = vario.check(vario.open_run(run.path))
    assert found.source == "stored"
    assert set(found.replayed) == {entry.name for entry in RULES if entry.part.over == "ranks"}
    assert found.missing == ""
    stored = vario.diagnose(vario.open_run(run.path), "stored")
    assert (stored.replayed, stored.missing) == ((), "ranks are not compared during training")


def test_older_runs_are_told_as_if_they_were_new(tmp_path):
    path = train(tmp_path / "older", steps=60, nan_step=45)
    new = vario.open_run(path).incidents
    for name, keys in (("alerts", ("incident", "part")), ("incidents", ("id", "stage", "chart", "raised_by"))):
        file = path / "rank0" / f"{name}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            for one in (line, line.get("lead", {}), *line.get("alerts", ())):
                for key in (*keys, "incident"):
                    one.pop(key, None)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = vario.open_run(path)
    assert [incident.to_json() for incident in run.incidents] == [incident.to_json() for incident in new]
    assert all(incident.id and incident.stage in STAGES for incident in run.incidents)
    assert vario.check(run).source == "stored"


def test_an_incident_that_lost_its_later_alerts_to_a_resume_is_what_is_left_of_it(path, tmp_path):
    alerts = [Alert.from_json(json.loads(line)) for line in (path / "rank0" / "alerts.jsonl").read_text().splitlines()]
    copy = tmp_path / "copy"
    made_runs.write_run(copy, [made_runs.record(step) for step in range(80)])
    for name in ("alerts.jsonl", "incidents.jsonl"):
        (copy / "rank0" / name).write_text((path / "rank0" / name).read_text())
    run = vario.open_run(copy)
    assert run.incidents[0].severity == "page"
    for name in ("alerts.jsonl", "incidents.jsonl"):
        take_back(copy / "rank0" / name, NAN_STEP)
    (left,) = [incident for incident in run.incidents if incident.id == "step-20"]
    assert (left.raised_by, left.cause) == (None, "nobody knows")
    assert left.last_step == max(alert.step for alert in alerts if alert.step < NAN_STEP and alert.incident)
