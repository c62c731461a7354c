"""A rank that is slow where no forward pass shows it, on two real ranks under DDP."""

import os
from pathlib import Path

import pytest

import vario
from starting import run_ranks
from thorough import cases

TESTS = Path(__file__).parents[1]
SLOW_FROM = 35
TRAIN = """
import sys, time
import torch, vario
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
step = 0

def lose_time(where):
    # The fault itself: this rank computes longer than the other.
    if step >= SLOW_FROM and dist.get_rank() == 1 and sys.argv[1] == where:
        time.sleep(0.1)

class Slowly(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)
    @staticmethod
    def backward(context, gradient):
        lose_time("backward")
        return gradient

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
    def forward(self, x):
        return self.second(Slowly.apply(self.first(x)))

model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
options = dict(directory="runs", name="job", every=1, quantities=["gradient", "communication"])
with vario.watch(model, optimizer, **options):
    for step in range(150):
        model(torch.randn(4, 16)).square().mean().backward()
        lose_time("clipping")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        dist.all_reduce(norm)
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", cases(["backward", "clipping"], ["backward"]))
def test_the_slow_rank_is_named_with_the_step_at_which_it_became_slow(tmp_path, where):
    (tmp_path / "train.py").write_text(TRAIN.replace("SLOW_FROM", str(SLOW_FROM)))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    done = run_ranks(["train.py", where], cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    run = vario.open_run(tmp_path / "runs" / "job")
    [alert] = vario.check(run, rules=["straggler"]).alerts
    assert (alert.rank, alert.began) == (1, SLOW_FROM)
    # Between backward and the update nothing is measured: there the wait of the other rank tells.
    assert alert.quantity == ("scalar" if where == "backward" else "communication")
