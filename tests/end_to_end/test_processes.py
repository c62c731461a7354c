"""Trainings in processes of their own: left without close, killed, and several ranks at once."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

import vario
from models import Perceptron, batch
from starting import Process, run_afresh, run_ranks, run_warm
from watching import check

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
START = """
import sys, torch, vario
from models import Perceptron, batch
torch.manual_seed(0)
model = Perceptron(dropout=0.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = vario.watch(model, optimizer, directory=".", name="one", quantities=["gradient", "gradient_local"])
def train(step):
    optimizer.zero_grad()
    model(batch(step)).square().mean().backward()
    optimizer.step()
"""


def script(folder, text, start=START):
    path = folder / "train.py"
    path.write_text(start + textwrap.dedent(text))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "ending", "state", "error"),
    [
        (run_afresh, "", "finished", None),
        (run_warm, "raise ValueError('of the user')", "crashed", "ValueError: of the user"),
    ],
    ids=["finished", "crashed"],
)
def test_a_script_that_never_closes_leaves_a_whole_run(tmp_path, start, ending, state, error):
    path = script(tmp_path, f"for step in range(5): train(step)\n{ending}\n")
    done = start(["-W", "error", path], cwd=tmp_path, env=ENVIRONMENT)
    found = vario.open_run(tmp_path / "one")
    assert (done.returncode == 0) == (state == "finished"), done.stderr
    assert found.steps("gradient").tolist() == [0, 1, 2, 3, 4]
    assert (found.state, found.error) == (state, error)


@pytest.mark.slow
def test_a_killed_process_loses_at_most_sixteen_steps(tmp_path):
    path = script(tmp_path, "for step in range(10**6):\n    train(step)\n    print(step, flush=True)\n")
    with Process([path], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE) as child:
        for line in child.stdout:
            if int(line) >= 150:
                break
        child.send_signal(signal.SIGKILL)
        done = [int(line) for line in child.stdout.read().split()]
    last = max([150, *done[:-1]])  # the last line may be torn
    steps = vario.open_run(tmp_path / "one").steps("gradient").tolist()
    assert steps == list(range(len(steps)))
    assert len(steps) >= last - 16


DISTRIBUTED = """
import sys, torch, vario
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from models import Perceptron, batch
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Perceptron(dropout=0.0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options = dict(directory=".", quantities=["gradient", "gradient_local", "activation"], every=1, strict=True)
with vario.watch(model, optimizer, **options) as monitor:
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            model(batch(100 * step + dist.get_rank())).square().mean().backward()
        model(batch(100 * step + 10 + dist.get_rank())).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        monitor.log(loss=step)
dist.destroy_process_group()
"""


def own_gradients(model, seeds):
    model.zero_grad()
    for seed in seeds:
        model(batch(seed)).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def distributed_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    script(folder, "", DISTRIBUTED)
    done = run_ranks(["train.py"], cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    (found,) = vario.list_runs(folder)
    return found


@pytest.mark.slow
def test_the_ranks_of_one_job_share_a_run(distributed_run):
    assert distributed_run.ranks == [0, 1]
    assert distributed_run.world_size == 2
    assert distributed_run.state == "finished"
    assert distributed_run.parts_off == []
    assert "up:output" in distributed_run.targets("activation", rank=1)
    for rank in (0, 1):
        assert distributed_run.steps(rank=rank).tolist() == [0, 1, 2]


@pytest.mark.slow
def test_reduced_gradients_are_those_of_one_process_on_the_joined_batch(distributed_run):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    gradients = own_gradients(model, [0, 1, 10, 11])
    table = {row["target"]: row for row in distributed_run.frame(0, "gradient", rank="all").to_pylist()}
    assert table.keys() == gradients.keys()
    for name, gradient in gradients.items():
        check(columns(table[name]), gradient / 2, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_local_gradients_are_those_of_the_rank_alone(distributed_run, rank):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    table = distributed_run.frame(0, "gradient_local", rank).to_pylist()
    for micro_step, seed in enumerate([rank, 10 + rank]):
        gradients = own_gradients(model, [seed])
        found = {row["target"]: row for row in table if row["micro_step"] == micro_step}
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            check(columns(found[name]), gradient, rtol=1e-4)


def columns(row):
    return [row[name] for name in ("count", "sum", "sum_squares", "min", "max", "nans", "infs", "zeros")]
