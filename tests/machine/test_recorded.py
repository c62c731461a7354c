"""Readings in a run: recorded at steps, from a thread that nobody waits for."""

import os
import shutil
import signal
import threading
import time

import pytest
import torch

import vario
from models import Perceptron, batch
from starting import run_afresh, run_ranks

FAST = {"seconds": 0.1}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def threads():
    return [one for one in threading.enumerate() if one.name == "vario-machine"]


def log_until_read(run, num_readings=2):
    """Log steps until there are readings in some of them; as a training does, without waiting for any."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        run.log(loss=1.0)
        run.wait()
        names = vario.open_run(run.path).targets("scalar")
        if "machine/cpu_percent" in names:
            steps = vario.open_run(run.path).series("machine/disk_free_bytes", "scalar").steps
            if len(steps) >= num_readings:
                return
    raise AssertionError("there were no readings")


def test_readings_are_plain_numbers_of_the_steps_they_fall_on():
    with vario.start("run", machine=FAST) as run:
        log_until_read(run)
        assert len(threads()) == 1
    assert threads() == []
    read = vario.open_run(run.path)
    found = read.series("machine/disk_free_bytes", "scalar")
    assert len(found.steps) < len(read.steps("scalar", 0))
    assert (found.values > 0).all()
    assert read.series("machine/memory_total_bytes", "scalar").steps.tolist() == found.steps[:1].tolist()
    assert read.parts_off == []
    assert {name.split("/")[0] for name in read.targets("scalar")} >= {"machine", "loss"}


def test_switched_off_there_is_no_thread_and_no_number():
    with vario.start("run", machine="off") as run:
        for _ in range(3):
            run.log(loss=1.0)
        run.wait()
        assert threads() == []
    assert [name for name in vario.open_run(run.path).targets("scalar") if name.startswith("machine/")] == []
    assert "machine" not in run._monitor.sinks


def test_switched_off_nothing_is_imported_and_otherwise_not_before_the_first_step(here):
    (here / "train.py").write_text(
        "import sys, vario\n"
        "run = vario.start('run', machine=sys.argv[1])\n"
        "known = {'psutil', 'pynvml'} & sys.modules.keys()\n"
        "if sys.argv[1] == 'off':\n"
        "    run.log(loss=1.0); run.wait(); run.log(loss=1.0); run.wait()\n"
        "    known |= {'psutil', 'pynvml'} & sys.modules.keys()\n"
        "run.stop()\n"
        "print(known)\n"
    )
    for chosen in ("off", "1"):
        assert run_afresh(["train.py", chosen], cwd=here).stdout == "set()\n"
        shutil.rmtree(here / "vario_runs")


def test_training_is_what_it_is_without_readings():
    def train(**options):
        torch.manual_seed(0)
        model = Perceptron(dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        with vario.watch(model, optimizer, **options):
            for step in range(20):
                loss = model(batch(step)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    assert train(machine=FAST) == train(machine="off") == train(enabled=False)


def test_a_reading_that_fails_is_switched_off_and_named(monkeypatch):
    monkeypatch.setattr("vario.sinks.machine.open_machine", lambda *rest: 1 / 0)
    with vario.start("run", machine=FAST) as run:
        deadline = time.monotonic() + 60
        while not run._monitor.off and time.monotonic() < deadline:
            run.log(loss=1.0)
            run.wait()
        run.log(loss=2.0)
    read = vario.open_run(run.path)
    assert [part.part for part in read.parts_off] == ["sink machine"]
    assert read.series("loss", "scalar").values[-1] == 2.0


def test_the_report_says_what_the_host_did():
    with vario.start("run", machine=FAST) as run:
        log_until_read(run)
    shown = run_afresh(["-m", "vario", "report", "run"], env={**os.environ, "COLUMNS": "120"})
    (line,) = [line for line in shown.stdout.splitlines() if " host " in line]
    assert "CPU" in line
    assert "of memory available" in line
    assert "of disk free" in line


def test_a_forked_process_has_no_such_thread_and_ends(here):
    with vario.start("run", machine=FAST) as run:
        log_until_read(run, num_readings=1)
        for _ in range(20):
            child = os.fork()
            if not child:
                signal.alarm(60)
                os._exit(0 if threads() == [] and run._monitor._closed else 1)
            assert os.waitpid(child, 0)[1] == 0
        log_until_read(run, num_readings=2)


SCRIPT = """
import sys, vario
run = vario.start("run", machine={"seconds": 3600})
for _ in range(3):
    run.log(loss=1.0)
    run.wait()
sys.exit(3)
"""


def test_a_process_ends_at_once_although_the_next_reading_is_far_away(here):
    (here / "train.py").write_text(SCRIPT)
    done = run_afresh(["train.py"], cwd=here)  # within the limit of `run_afresh`
    assert (done.returncode, done.stderr) == (3, "")
    assert vario.open_run("vario_runs/run").state == "crashed"


RANKS = """
import time, torch, vario
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with vario.watch(model, optimizer, name="ranks", machine={"seconds": 0.1}) as monitor:
    stop = torch.zeros(1)
    while not stop.item():
        optimizer.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
        monitor.wait()
        names = vario.open_run(monitor.path).targets("scalar", rank=dist.get_rank())
        stop[0] = float("machine/process_cpu_percent" in names)
        dist.all_reduce(stop, dist.ReduceOp.MIN)
dist.destroy_process_group()
"""


def test_one_rank_reads_the_host_and_the_others_their_process(here):
    (here / "train.py").write_text(RANKS)
    done = run_ranks(["train.py"], cwd=here)
    assert done.returncode == 0, done.stderr
    run = vario.open_run("vario_runs/ranks")
    machine = [{name for name in run.targets("scalar", rank=rank) if name.startswith("machine/")} for rank in (0, 1)]
    assert {"machine/disk_free_bytes", "machine/memory_available_bytes"} <= machine[0]
    assert machine[1] <= {name for name in machine[0] if "/process_" in name}
    assert "machine/process_cpu_percent" in machine[1]
