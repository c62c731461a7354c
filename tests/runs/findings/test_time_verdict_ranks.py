"""What limits the speed of two real ranks: a slow link, a slow rank, reductions of one's own."""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import made_runs
import vario
from starting import run_ranks
from vario.runs.findings.time_verdict import kind_of, time_verdict
from vario.runs.views.speed.gpu_limits import GpuLimits
from vario.runs.views.speed.time_split import split_time

SCRIPT = """
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vario

PAUSE = 0.15  # much longer than what a reduction takes while both ranks wait for a busy machine
dist.init_process_group("gloo")
slow, rank = sys.argv[1], dist.get_rank()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def forward(self, x):
        if slow == "forward" or (slow == "rank" and rank == 1):
            time.sleep(PAUSE)
        return self.inner(x)


def late(state, bucket):
    reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def arrives(future):
        time.sleep(PAUSE)
        return future.value()[0] / dist.get_world_size()

    return reduced.then(arrives)


torch.manual_seed(0)
model = DistributedDataParallel(Net())
if slow == "link":
    model.register_comm_hook(None, late)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with vario.watch(model, optimizer, name=slow.replace(" ", "-"), strict=True) as monitor:
    for step in range(24):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        if slow == "own reduction":
            seen = torch.ones(1)
            dist.all_reduce(seen)
            time.sleep(PAUSE)
        optimizer.step()
dist.destroy_process_group()
"""


SLOWED = ("link", "rank", "own reduction", "forward")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All trainings side by side: they sleep most of the time."""
    place = tmp_path_factory.mktemp("slowed")
    (place / "train.py").write_text(SCRIPT)
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda slow: run_ranks(["train.py", slow], cwd=place, env=dict(os.environ)), SLOWED):
            assert done.returncode == 0, done.stderr[-4000:]
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "kind", "words"),
    [
        ("link", "communication", "goes to reducing gradients after backward"),
        ("rank", "ranks", "Waiting for rank 1"),
        ("own reduction", "communication", "most likely"),
        ("forward", "compute", "forward and backward take"),
    ],
)
def test_the_verdict_of_ranks_names_what_was_slowed(slow, kind, words, folder):
    run = vario.open_run(folder / "vario_runs" / slow.replace(" ", "-"))
    verdict = time_verdict(run)
    assert (verdict.kind, words in verdict.text) == (kind, True), (verdict.text, verdict.evidence)
    assert sum(verdict.split.shares.values()) == pytest.approx(1.0)
    if slow == "link":
        assert verdict.split.shares["communication"] > 0.5
        assert time_verdict(run, 1).kind == "communication"
    if slow == "rank":
        # The slow rank itself waits for nobody.
        assert time_verdict(run, 1).kind == "compute"
        assert time_verdict(run, 1).split.shares["forward"] > 0.5


def split_of(**numbers):
    return split_time(np.arange(10), {name: np.full(10, value) for name, value in numbers.items()})


BUSY = split_of(step_seconds=1.0, wait_seconds=0.01, forward_seconds=0.5, backward_seconds=0.45)
WAITING = split_of(step_seconds=1.0, wait_seconds=0.5, forward_seconds=0.2, backward_seconds=0.2)
COOL = GpuLimits(0.0, "gpu0", False, 1e6)


@pytest.mark.parametrize(
    ("split", "limits", "kind"),
    [
        (BUSY, None, "compute"),
        (BUSY, COOL, "compute"),
        (BUSY, dataclasses.replace(COOL, throttled_share=0.2), "compute"),
        (BUSY, dataclasses.replace(COOL, throttled_share=0.6, is_heat=True), "throttled"),
        (WAITING, dataclasses.replace(COOL, throttled_share=0.6), "between"),  # a GPU that waits is not limited by it
        (WAITING, COOL, "between"),
        (WAITING, dataclasses.replace(COOL, received_bytes_per_second=0.5e9), "between"),
        (WAITING, dataclasses.replace(COOL, received_bytes_per_second=1.5e9), "transfer"),
        (BUSY, dataclasses.replace(COOL, received_bytes_per_second=9e9), "compute"),
    ],
)
def test_readings_of_gpus_decide_between_kinds(split, limits, kind):
    assert kind_of(split, 1, limits) == kind


@pytest.mark.parametrize(
    ("wait", "readings", "words"),
    [
        (0.5, {"pcie_received_bytes_per_second": 2e9}, "Transfers: 56 % of the time is between steps"),
        (0.01, {"thermal_share": 0.7}, "Throttled: gpu1 was slowed down because of heat 70 % of the time"),
        (0.01, {"slowdown_share": 0.7, "thermal_share": 0.1}, "slowed down by its power supply"),
    ],
)
def test_a_run_with_such_readings_says_so(wait, readings, words, tmp_path):
    """The numbers that a GPU and its readings leave, written by hand: there is no GPU here."""
    numbers = {"step_seconds": wait + 0.4, "wait_seconds": wait, "forward_seconds": 0.2, "backward_seconds": 0.2}
    numbers |= {f"machine/gpu1/{name}": value for name, value in readings.items()}
    numbers["machine/gpu0/thermal_share"] = 0.0
    made_runs.write_run(tmp_path / "run", [made_runs.record(step, **numbers) for step in range(30)])
    verdict = time_verdict(vario.open_run(tmp_path / "run"))
    assert words in verdict.text
    assert verdict.advice
