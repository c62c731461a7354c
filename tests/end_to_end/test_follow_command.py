"""`vario follow` beside a training on three real ranks says what `vario check` says afterwards."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vario
from starting import run_ranks
from thorough import thorough
from vario.cli import main
from vario.rules import RULES
from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.incidents import collect

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(TESTS),
    "PYTHONWARNINGS": "ignore",
}
# A job in the background of a shell is born deaf to Ctrl-C, and its children would be.
WATCH = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from vario.cli import main
raise SystemExit(main(["follow", "runs", "--keep", "--interval", "0.05", "--json"]))
"""
SCRIPT = Path(__file__).with_name("watched_ranks.py")


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The folder of the run, and what the watcher said while it trained."""
    place = tmp_path_factory.mktemp("watched")
    (place / "runs").mkdir()
    watch = [sys.executable, "-c", WATCH]
    watcher = subprocess.Popen(watch, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        result = run_ranks([SCRIPT], 3, cwd=place, env=ENVIRONMENT)
        assert result.returncode == 0, result.stderr
        alerts = place / "runs/watched/watch/alerts.jsonl"
        before = alerts.read_text()
        # On a busy machine the watcher comes to the last steps a little later than the ranks.
        deadline = time.monotonic() + 60
        while "rank_outlier" not in alerts.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        # As Ctrl-C does: it says what is left to say and ends quietly.
        watcher.send_signal(2)
        said, _ = watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    assert before
    return place / "runs" / "watched", [json.loads(line) for line in said.splitlines()]


def stored(folder, name, kind):
    return [kind.from_json(json.loads(line)) for line in (folder / "watch" / name).read_text().splitlines()]


def over_ranks():
    return [found.name for found in RULES if found.part.over == "ranks"]


@thorough
def test_what_was_found_live_is_what_a_replay_finds(watched):
    folder, _ = watched
    later = vario.check(vario.open_run(folder), over_ranks())
    live = stored(folder, "alerts.jsonl", Alert)
    assert [alert.to_json() for alert in live] == [alert.to_json() for alert in later.alerts]
    assert {alert.rule for alert in live} >= {"replica_desync", "rank_outlier"}


def test_the_incidents_name_rank_step_and_tensor(watched):
    folder, said = watched
    told = [entry for entry in said if entry["event"] == "incident" and entry["lead"]["rule"] in over_ranks()]
    assert [(entry["lead"]["rule"], entry["rank"], entry["lead"]["step"]) for entry in told[:1]] == [
        ("replica_desync", 2, 12)
    ]
    odd = next(entry for entry in told if entry["lead"]["rule"] == "rank_outlier")
    assert (odd["rank"], odd["lead"]["step"]) == (1, 45)
    later = vario.check(vario.open_run(folder), over_ranks()).incidents
    live = stored(folder, "incidents.jsonl", Incident)
    # One that turned out worse while it went on was told twice.
    assert {(one.lead.rule, one.lead.step, one.lead.rank) for one in live} >= {
        (one.lead.rule, one.lead.step, one.lead.rank) for one in later
    }


def test_stored_alerts_of_all_ranks_and_the_watcher_come_out_once(watched):
    folder, _ = watched
    run = vario.open_run(folder)
    assert len(run.incidents) == len(collect(run.alerts, {found.name: found.part for found in RULES})[1])
    everything = vario.check(run)
    assert [one.lead.text for one in run.incidents] == [one.lead.text for one in everything.incidents]
    text = str(vario.diagnose(run, "stored"))
    assert text == str(vario.diagnose(run, "replay"))
    assert "At step 12 on rank 2" in text


def test_looking_again_changes_nothing(watched, capsys):
    folder, _ = watched
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["follow", str(folder)]) == 0
    assert "replica_desync" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_all_rules_from_outside_find_what_all_rules_find(watched, capsys):
    folder, _ = watched
    assert main(["follow", str(folder), "--once", "--all", "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    later = vario.check(vario.open_run(folder)).incidents
    leads = {(entry["lead"]["rule"], entry["lead"]["step"]) for entry in said if entry["event"] == "incident"}
    assert leads >= {(one.lead.rule, one.lead.step) for one in later}
