"""Processes that begin one name, or resume one run, at the same instant: one gets it, and the others are told."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import vario
from made_runs import check_rows, frame, header, record
from starting import Process, run_warm
from vario.core.errors import RunTaken
from vario.runs.run import open_run
from vario.sinks.store import Store

TESTS = Path(__file__).parents[1]

RACE = """
import os, sys
{start}
def race(attempt, num_processes, leave):
    gate, results, end = os.pipe(), os.pipe(), os.pipe()
    children = []
    for number in range(num_processes):
        child = os.fork()
        if child:
            children.append(child)
            continue
        os.close(gate[1]), os.close(end[1])
        os.read(gate[0], 1)  # returns for all at once, when the parent closes its end
        code = 3
        try:
            finish = attempt(number)
            os.write(results[1], b"1")
            os.read(end[0], 1)
            if not leave:
                finish()
            code = 0
        except vario.core.errors.RunTaken as error:
            os.write(results[1], b"0")
            print(error, file=sys.stderr)
            code = 2
        finally:
            os._exit(code)
    os.close(gate[0]), os.close(end[0])
    os.close(gate[1])
    answers = b"".join(os.read(results[0], 1) for _ in children)
    os.close(end[1]), os.close(results[0]), os.close(results[1])
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert answers.count(b"1") == 1, answers
    assert codes == [0] + [2] * (num_processes - 1), codes
"""
STORES = """
import vario.core.errors
from made_runs import frame, header, record
from vario.sinks.store import Store
"""
ROUNDS = """
from pathlib import Path
def begin(name, resume):
    def attempt(number):
        store = Store()
        store.open(header(Path(name), resume=resume))
        step = store.first_step
        def finish():
            store.write(record(step, frame(step), loss=float(number)))
            store.close("finished", None)
        return finish
    return attempt
for nth in range(15):
    race(begin(f"run-{nth}", resume=False), 4, leave=nth % 3 == 0)
    for session in range(3):
        race(begin(f"run-{nth}", resume=True), 4, leave=session == 1)
"""


def run_race(folder, text):
    (folder / "race.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "race.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_of_processes_that_come_at_the_same_instant_one_gets_the_run(tmp_path):
    done = run_race(tmp_path, RACE.format(start=STORES) + ROUNDS)
    assert done.returncode == 0, done.stderr
    assert "is still writing this run" in done.stderr
    for nth in range(15):
        # A process that left without a word recorded nothing, and locked nobody out.
        is_begun = nth % 3 != 0
        run = open_run(tmp_path / f"run-{nth}")
        check_rows(run.to_arrow("gradient"), range(2 + is_begun))
        assert (run.state, len(run.sessions)) == ("finished", 4)


TRAININGS = """
import torch
import vario
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(name, resume):
    def attempt(number):
        monitor = vario.watch(model, optimizer, directory=".", name=name, resume=resume, every=1)
        def finish():
            for step in range(5):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
                monitor.log(who=float(number))
            monitor.close()
        return finish
    return attempt
race(train("one", resume=False), 2, leave=False)
race(train("one", resume=True), 2, leave=False)
"""


@pytest.mark.slow
def test_of_two_trainings_that_come_at_the_same_instant_one_is_recorded(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "race.py").write_text(RACE.format(start="import vario.core.errors") + TRAININGS)
    done = run_warm(["race.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = vario.open_run(tmp_path / "one")
    assert found.steps("gradient").tolist() == list(range(10))
    assert [session["first_step"] for session in found.sessions] == [0, 5]
    who = found.series("who", "scalar").values.tolist()
    assert len(set(who[:5])) == len(set(who[5:])) == 1, "rows of two processes are mixed"
    assert found.parts_off == []


COMER = """
import sys
import torch
import vario
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with vario.watch(model, optimizer, directory=".", name="one", every=1, **{options}) as monitor:
    print(monitor.path.name, flush=True)
    sys.stdin.readline()
    for step in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
"""


def comer(folder, **options):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return Process(["-c", COMER.format(options=options)], cwd=folder, **pipes)


def test_a_process_that_comes_second_gets_a_folder_of_its_own_where_that_is_asked_for(tmp_path):
    pytest.importorskip("torch")
    with comer(tmp_path) as first:
        assert first.stdout.readline() == "one\n"
        with comer(tmp_path, if_taken="new", resume=True) as second, comer(tmp_path, if_taken="new") as third:
            names = {second.stdout.readline(), third.stdout.readline()}
            assert names == {"one-2\n", "one-3\n"}
            said = [process.communicate("go\n")[1] for process in (second, third, first)]
    assert "one already exists; this run is one-" in said[0]
    for name in ("one", "one-2", "one-3"):
        run = vario.open_run(tmp_path / name)
        assert (run.state, run.steps("gradient").tolist()) == ("finished", list(range(5)))


def test_a_process_that_waits_goes_on_when_the_other_has_ended(tmp_path):
    pytest.importorskip("torch")
    with comer(tmp_path) as first:
        assert first.stdout.readline() == "one\n"
        with comer(tmp_path, if_taken="wait", resume=True) as second:
            assert "is still writing this run. Waiting for it to end." in second.stderr.readline()
            assert vario.open_run(tmp_path / "one").sessions[0]["first_step"] == 0
            first.communicate("go\n")
            assert second.stdout.readline() == "one\n"
            second.communicate("go\n")
    run = vario.open_run(tmp_path / "one")
    assert (run.state, run.steps("gradient").tolist()) == ("finished", list(range(10)))
    assert [session["first_step"] for session in run.sessions] == [0, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"if_taken": "overwrite"}, "if_taken: expected one of 'raise', 'new', 'wait', got 'overwrite'"),
        ({"if_taken": "wait"}, "if_taken: 'wait' needs resume = true"),
    ],
)
def test_what_cannot_be_done_about_a_taken_run_is_refused(tmp_path, options, words):
    torch = pytest.importorskip("torch")
    with pytest.raises(vario.core.errors.ConfigError) as refused:
        vario.watch(torch.nn.Linear(1, 1), directory=tmp_path, name="one", **options)
    assert words in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_ranks_of_a_job_do_not_choose_folders_one_by_one(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(vario.ConfigError, match="'new' works for a single process only, and this job has 2"):
        vario.watch(torch.nn.Linear(1, 1), directory=tmp_path, name="one", if_taken="new")
    assert not list(tmp_path.iterdir())


def elsewhere(folder, seconds_ago):
    """As if a process of another machine had written this rank."""
    for path in [folder / "rank.json", *folder.glob("writer-*.json")]:
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "host": "node-7", "machine": "another", "pid": 4}))
    for path in folder.iterdir():
        when = path.stat().st_mtime - seconds_ago
        os.utime(path, (when, when))


def running(path):
    store = Store()
    store.open(header(path))
    store.write(record(0, frame(0)))
    return store


def test_a_process_of_another_machine_that_gives_no_sign_is_followed_and_told_when_it_wakes(tmp_path):
    asleep = running(tmp_path / "run")
    elsewhere(tmp_path / "run" / "rank0", 3600)
    store = Store()
    store.open(header(tmp_path / "run", resume=True))
    store.write(record(1, frame(1)))
    with pytest.raises(RunTaken, match="another process has taken over this run"):
        asleep.write(record(2, frame(2)))
    asleep.close("finished", None)
    assert open_run(tmp_path / "run").state == "running", "the run is the other's now"
    store.close("finished", None)
    check_rows(open_run(tmp_path / "run").to_arrow("gradient"), [0, 1])


def test_a_process_of_another_machine_that_gives_signs_keeps_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr("vario.store.holding.POLL_SECONDS", 0.01)
    store = running(tmp_path / "run")
    elsewhere(tmp_path / "run" / "rank0", 0)
    sign, is_over = tmp_path / "run" / "rank0" / "rank.json", threading.Event()

    def live():
        number = 0
        while not is_over.wait(0.02):
            os.utime(sign, (sign.stat().st_atime, 2e9 + (number := number + 1)))

    alive = threading.Thread(target=live)
    alive.start()
    try:
        with pytest.raises(RunTaken, match="process 4 of node-7 is still writing this run"):
            Store().open(header(tmp_path / "run", resume=True))
    finally:
        is_over.set()
        alive.join()
    store.close("finished", None)


def test_one_that_is_gone_from_another_machine_is_waited_for_and_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("vario.store.holding.OBSERVED_SECONDS", 0.2)
    monkeypatch.setattr("vario.store.holding.POLL_SECONDS", 0.01)
    running(tmp_path / "run")
    elsewhere(tmp_path / "run" / "rank0", 0)
    store = Store()
    store.open(header(tmp_path / "run", resume=True))
    assert store.first_step == 1
    store.close("finished", None)


def test_ranks_of_two_jobs_do_not_begin_one_run(tmp_path):
    stores = [Store()]
    stores[0].open(header(tmp_path / "run", rank=0, world_size=2, job="first"))
    with pytest.raises(RunTaken, match="another job, first, has started this run"):
        Store().open(header(tmp_path / "run", rank=1, world_size=2, job="second"))
    stores.append(Store())
    stores[1].open(header(tmp_path / "run", rank=1, world_size=2, job="first"))
    for store in stores:
        store.close("finished", None)
