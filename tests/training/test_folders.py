"""One folder for all ranks of a job, with real processes and the variables that launchers set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vario.backends.launchers import this_job
from vario.training.folders import run_folder

VARIABLES = ("TORCHELASTIC_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")

RANK = """
import sys
from pathlib import Path
from vario.training.folders import run_folder
directory, name, rank, world_size, num_monitors = sys.argv[1:]
sys.stdin.readline()
for _ in range(int(num_monitors)):
    folder, resume = run_folder(Path(directory), name or None, False, int(rank), int(world_size))
    print(folder.name, resume)
"""

LAUNCHER = """
import json, subprocess, sys
directory, script, lives = sys.argv[1:]
for life in json.loads(lives):
    ranks = [
        subprocess.Popen(
            [sys.executable, script, directory, life.get("name", ""), str(rank), str(life["world_size"]),
             str(life.get("monitors", 1))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(life["world_size"])
    ]
    # All have begun before the first of them may go on: that is what a rendezvous is.
    for rank in life.get("order", range(life["world_size"])):
        ranks[rank].stdin.write("\\n")
        ranks[rank].stdin.flush()
    print(json.dumps([rank.communicate()[0].splitlines() for rank in ranks]))
"""


@pytest.fixture
def launch(tmp_path):
    """Starts a launcher that starts ranks, once or again; what each rank of each life says of its folders."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    (tmp_path / "rank.py").write_text(RANK)

    def start(*lives, **variables):
        plain = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
        command = [sys.executable, str(tmp_path / "launcher.py"), str(tmp_path / "runs"), str(tmp_path / "rank.py")]
        done = subprocess.run(
            [*command, json.dumps(lives)], env={**plain, **variables}, capture_output=True, text=True, check=True
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return start


@pytest.fixture
def no_launcher(monkeypatch):
    for name in os.environ:
        if name.startswith(VARIABLES):
            monkeypatch.delenv(name)


def same(said, resume):
    """The one folder that all ranks of a life named, which is new or not."""
    ((text,),) = {tuple(lines) for lines in said}
    folder, answer = text.split()
    assert answer == str(resume)
    return folder


def folders_in(directory):
    return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))


def test_ranks_that_come_at_once_share_one_folder_and_leave_no_other(launch, tmp_path):
    (said,) = launch({"world_size": 6}, MASTER_ADDR="localhost", MASTER_PORT="29500")
    assert folders_in(tmp_path / "runs") == [same(said, resume=False)]
    assert len(list((tmp_path / "runs" / ".jobs").iterdir())) == 1, "drafts are cleared away"


def test_a_parent_that_starts_ranks_twice_gets_two_runs(launch, tmp_path):
    """As a notebook does, with one port or none: nothing starts these ranks again."""
    for variables in ({}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}):
        said = launch({"world_size": 2}, {"world_size": 3, "order": [2, 1, 0]}, **variables)
        first, second = (same(life, resume=False) for life in said)
        assert first != second


def test_what_a_launcher_starts_again_goes_on(launch, tmp_path):
    job = {"TORCHELASTIC_RUN_ID": "an id/with: signs", "MASTER_PORT": "1"}
    said = launch({"world_size": 2}, {"world_size": 2, "order": [1, 0]}, {"world_size": 1}, **job)
    first = same(said[0], resume=False)
    assert same(said[1], resume=True) == first
    assert same(said[2], resume=True) == first, "also with fewer ranks than before"
    (later,) = launch({"world_size": 2}, **job)
    assert same(later, resume=False) != first, "another job with the same id is another run"


def test_the_second_monitor_of_a_job_goes_on_with_the_second_run(launch):
    first, again = launch({"world_size": 2, "monitors": 2}, {"world_size": 2, "monitors": 2}, TORCHELASTIC_RUN_ID="two")
    assert first[0] == first[1]
    assert [line.split()[1] for line in first[0]] == ["False", "False"]
    runs = [line.split()[0] for line in first[0]]
    assert len(set(runs)) == 2
    assert again == [[f"{run} True" for run in runs]] * 2


def test_a_named_run_goes_on_as_well_when_its_ranks_are_started_again(launch):
    lives = {"world_size": 2, "name": "mine"}, {"world_size": 2, "name": "mine"}
    first, again = launch(*lives, TORCHELASTIC_RUN_ID="none", MASTER_PORT="29500")
    assert (same(first, resume=False), same(again, resume=True)) == ("mine", "mine")


def test_a_job_elsewhere_with_the_same_key_is_told_by_its_size(launch, tmp_path):
    jobs = tmp_path / "runs" / ".jobs"
    jobs.mkdir(parents=True)
    entry = jobs / "ours-0.json"
    entry.write_text('{"run": "theirs", "resume": false, "nth": 0, "world_size": 16}')
    future = entry.stat().st_mtime + 3600
    os.utime(entry, (future, future))
    (said,) = launch({"world_size": 2}, TORCHELASTIC_RUN_ID="ours")
    assert same(said, resume=False) != "theirs"


@pytest.mark.usefixtures("no_launcher")
def test_the_key_is_what_the_ranks_of_a_job_have_in_common(monkeypatch):
    here = os.uname().nodename
    assert this_job(os.environ).key == f"{here}-{os.getppid()}"
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert this_job(os.environ).key == f"{here}-29500", "a loopback address is that of many machines"
    monkeypatch.setenv("MASTER_ADDR", "node-1")
    assert this_job(os.environ).key == "node-1-29500"
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    assert this_job(os.environ).key == "slurm-77-3-29500"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert this_job(os.environ).key == "slurm-77-3-29500", "torchrun's word for no id"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a/b")
    key = this_job(os.environ).key
    assert Path(key).name == key
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a_b")
    assert this_job(os.environ).key != key


@pytest.mark.usefixtures("no_launcher")
def test_one_process_has_the_name_or_a_folder_of_its_own(tmp_path):
    assert run_folder(tmp_path, "mine", False, 0, 1) == (tmp_path / "mine", False)
    assert run_folder(tmp_path, "mine", True, 1, 2) == (tmp_path / "mine", True)
    (one, _), (other, _) = (run_folder(tmp_path, None, False, 0, 1) for _ in range(2))
    assert one != other
    assert folders_in(tmp_path) == sorted([one.name, other.name])


@pytest.mark.usefixtures("no_launcher")
def test_where_nothing_can_be_written_all_ranks_still_mean_one_folder(tmp_path, caplog):
    blocked = tmp_path / "runs"
    blocked.write_text("a file, not a folder")
    found = {run_folder(blocked, None, False, rank, 2) for rank in range(2)}
    assert len(found) == 1
    assert "cannot agree on a folder" in caplog.text
