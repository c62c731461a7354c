"""One rank of a job is killed or raises: it is named first, with its true last step, and the others as its victims."""

import json
import os
from pathlib import Path

import pytest

import vario
from starting import run_ranks, run_warm
from vario.cli import main

TESTS = Path(__file__).parents[1]
LAST = 37
TRAIN = """
import os, signal, sys
import torch, vario
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with vario.watch(model, optimizer, directory="runs", name="job", every=1, quantities=["gradient_local"]) as monitor:
    for step in range(1000):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == LAST and dist.get_rank() == 1:
            monitor.wait()
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no more text")
"""


def run_until_it_fails(folder, how, ranks, launcher=None):
    (folder / "train.py").write_text(TRAIN.replace("LAST", str(LAST)))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    if launcher is None:
        done = run_ranks(["train.py", how], ranks, cwd=folder, env=variables)
    else:
        done = run_warm([*launcher, "--nproc-per-node", str(ranks), "train.py", how], cwd=folder, env=variables)
    assert done.returncode != 0
    return vario.open_run(folder / "runs" / "job")


def told_by_watch(run, capsys):
    assert main(["follow", str(run.path), "--once", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["event"] == "rank"]


@pytest.mark.slow
def test_a_killed_rank_is_named_with_the_last_step_of_its_rows(tmp_path, capsys):
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    run = run_until_it_fails(tmp_path, "killed", ranks=2, launcher=torchrun)
    states = {found.rank: found for found in run.rank_states}
    assert (states[1].state, states[1].last_step) == ("died", LAST)
    assert run.steps("gradient_local", 1)[-1] == LAST
    # Rank 0 was stopped by its launcher, or its next collective raised: either is no failure of its own, unless it was
    # killed without a word as well. Then nothing tells who was the first.
    if states[0].state == "crashed":
        assert states[0].victim_of == 1
        assert run.error == "rank 1 died without an error message"
    assert main(["report", str(run.path)]) == 0
    assert f"after step {LAST}" in capsys.readouterr().out
    (died,) = (line for line in told_by_watch(run, capsys) if line["rank"] == 1)
    assert (died["kind"], died["last_step"]) == ("died", LAST)


@pytest.mark.slow
def test_the_rank_that_raised_is_named_first_and_the_others_as_its_victims(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    run = run_until_it_fails(tmp_path, "raises", ranks=3)
    assert (run.state, run.error) == ("crashed", "ValueError: no more text")
    assert {found.rank: found.victim_of for found in run.rank_states} == {0: 1, 1: None, 2: 1}
    assert main(["report", str(run.path)]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "crashed: ValueError: no more text" in printed
    assert f"after step {LAST}; rank 1 took down ranks 0, 2" in printed
    assert printed.index("rank 1 crashed") < printed.index("ranks 0, 2")
    assert main(["ls", str(run.path.parent)]) == 0
    assert "crashed (rank 1)" in capsys.readouterr().out
    told = told_by_watch(run, capsys)
    assert [line["rank"] for line in told] == [1, 0, 2]
    assert [line["victim_of"] for line in told] == [None, 1, 1]
