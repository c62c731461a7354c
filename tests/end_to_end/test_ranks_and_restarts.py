"""Ranks that are killed and started again, and ranks of two nodes that come at different times, write one run."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import vario
from thorough import thorough
from vario.cli import main

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(TESTS),
    "PYTHONWARNINGS": "error",
    # Else torch 2.13 keeps one store for all lives, and gloo now and then finds the address of a dead rank in it.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
LAUNCHER = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
START = """
import os, pathlib, signal, time
import torch, vario
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from models import Perceptron, batch
dist.init_process_group("gloo")
# Not the launcher's count of restarts: of two launchers only those count one whose own rank has failed.
killed = pathlib.Path("killed")
rank, life = dist.get_rank(), int(killed.exists())
def die():
    killed.touch()
    os.kill(os.getpid(), signal.SIGKILL)
def learner():
    torch.manual_seed(0)
    model = DistributedDataParallel(Perceptron(dropout=0.0))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
def train(model, optimizer, monitor, num_steps):
    for step in range(num_steps):
        optimizer.zero_grad()
        model(batch(step + 10 * rank)).square().mean().backward()
        optimizer.step()
        monitor.log(loss=life)
        monitor.wait()
        yield step
options = dict(directory="runs", quantities=["gradient_local"], every=1, strict=True)
"""
KILLED = (
    START
    + """
model, optimizer = learner()
with vario.watch(model, optimizer, **options) as monitor:
    for step in train(model, optimizer, monitor, 4):
        if life == 0 and step == 2:
            dist.barrier()
            # Both have recorded three steps when one of them dies in the fourth.
            if rank == 1:
                die()
# A second Monitor in the same processes has a run of its own.
model, optimizer = learner()
with vario.watch(model, optimizer, **options) as monitor:
    for step in train(model, optimizer, monitor, 2):
        pass
dist.destroy_process_group()
"""
)
LATE = (
    START
    + """
model, optimizer = learner()
ready = pathlib.Path("rank1-watches")
# Rank 0, which describes the run, comes last.
while rank == 0 and not ready.exists():
    time.sleep(0.01)
with vario.watch(model, optimizer, **options) as monitor:
    ready.touch()
    for step in train(model, optimizer, monitor, 3):
        if life == 0 and step == 1:
            dist.barrier()
            if rank == 1:
                die()
dist.destroy_process_group()
"""
)


def launch(folder, *words):
    return subprocess.Popen(
        [*LAUNCHER, *words, "train.py"],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def whole_output(process):
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        process.terminate()  # the launcher takes its ranks along
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """Two ranks of which one is killed; the launcher starts both again."""
    folder = tmp_path_factory.mktemp("restarted")
    (folder / "train.py").write_text(KILLED)
    whole_output(launch(folder, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"))
    return folder / "runs"


@pytest.mark.slow
def test_ranks_that_are_started_again_go_on_with_their_run(restarted):
    run, second = vario.list_runs(restarted)
    assert run.ranks == second.ranks == [0, 1]
    assert (run.state, run.error, run.world_size) == ("finished", None, 2)
    assert len(run.sessions) == 2
    # Rank 0 may have seen a part of the step in which the other one died.
    first = run.sessions[1]["first_step"]
    assert first in (3, 4)
    for rank in (0, 1):
        kept = [step for step in run.steps("gradient_local", rank) if step < first]
        assert kept[:3] == [0, 1, 2], "what was recorded before the kill"
        assert [step for step in run.steps("gradient_local", rank) if step >= first] == list(range(first, first + 4))
        loss = run.series("loss", "scalar", rank=rank)
        assert dict(zip(loss.steps, loss.values, strict=True)) == {
            **dict.fromkeys(range(3), 0.0),
            **dict.fromkeys(range(first, first + 4), 1.0),
        }
    rows = run.to_arrow("gradient_local", 1).to_pylist()
    assert len(rows) == len({(row["step"], row["target"]) for row in rows}), "no row twice"


@pytest.mark.slow
def test_a_second_monitor_in_the_same_processes_has_a_run_of_its_own(restarted):
    _, second = vario.list_runs(restarted)
    assert (second.state, len(second.sessions)) == ("finished", 1)
    for rank in (0, 1):
        assert second.steps("gradient_local", rank).tolist() == [0, 1]


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """Two launchers as on two nodes, a rank each, the second begun when the first already waits; one rank is killed."""
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "train.py").write_text(LATE)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "tests-one"]
    words += ["--max-restarts", "1"]
    words += ["--rdzv-endpoint", f"localhost:{port}"]
    # What an earlier job with the same id has left.
    jobs = folder / "runs" / ".jobs"
    jobs.mkdir(parents=True)
    (jobs / "tests-one-0.json").write_text('{"run": "old", "resume": false, "nth": 0, "world_size": 2}')
    os.utime(jobs / "tests-one-0.json", (0, (jobs / "tests-one-0.json").stat().st_mtime - 60))
    with launch(folder, *words) as first:
        try:
            while not is_listening(port):
                assert first.poll() is None, first.stdout.read()
            with launch(folder, *words) as second:
                whole_output(second)
            whole_output(first)
        finally:
            first.terminate()
    return folder / "runs"


def is_listening(port):
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


@thorough
@pytest.mark.slow
def test_ranks_of_two_nodes_share_a_run_whoever_comes_first(two_nodes, capsys):
    (run,) = vario.list_runs(two_nodes)
    assert (run.ranks, run.world_size, run.state) == ([0, 1], 2, "finished")
    assert run.hosts == dict.fromkeys((0, 1), socket.gethostname())
    entries = [json.loads((two_nodes / ".jobs" / f"tests-one-{number}.json").read_text()) for number in (1, 2)]
    assert [(entry["run"], entry["resume"]) for entry in entries] == [(run.name, False), (run.name, True)]
    assert main(["report", str(run.path)]) == 0
    assert f"2 of 2 recorded (data 2), on {socket.gethostname()}" in capsys.readouterr().out


@thorough
@pytest.mark.slow
def test_ranks_of_two_nodes_go_on_together_when_one_was_killed(two_nodes):
    (run,) = vario.list_runs(two_nodes)
    _, again = run.sessions
    for rank in (0, 1):
        loss = run.series("loss", "scalar", rank=rank)
        lives = {0: [0, 1], 1: [again["first_step"] + step for step in range(3)]}
        assert {life: loss.steps[loss.values == life].tolist() for life in (0, 1)} == lives
