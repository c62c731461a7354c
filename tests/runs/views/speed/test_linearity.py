"""The speed of a run beside that of a baseline, on one and on two real ranks."""

import json
import os

import pytest

import made_runs
import slowed_trainings
import vario
from starting import run_ranks
from vario.cli import main
from vario.runs.views.speed.linearity import read_linearity

SCRIPT = """
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vario

name, pause = sys.argv[1], float(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with vario.watch(model, optimizer, name=name, overhead="off") as monitor:
    for step in range(24):
        time.sleep(pause)
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""


def steps(seconds, samples, **more):
    return [
        made_runs.record(step, step_seconds=seconds, wait_seconds=0.0, samples_seen=samples * (step + 1), **more)
        for step in range(20)
    ]


def run_of(folder, name, seconds, samples, world_size=1, mesh=None):
    changes = {"world_size": world_size} | ({} if mesh is None else {"mesh": mesh})
    made_runs.write_run(folder / name, steps(seconds, samples), **changes)
    return vario.open_run(folder / name)


def test_a_rank_that_is_half_as_fast_is_half_linear(tmp_path):
    one = run_of(tmp_path, "one", 0.1, 8.0)
    four = run_of(tmp_path, "four", 0.2, 8.0, world_size=4)
    found = read_linearity(four, one)
    assert found.unit == "samples/s"
    assert (found.per_rank, found.baseline_per_rank) == (pytest.approx(40.0), pytest.approx(80.0))
    assert found.share == pytest.approx(0.5)
    assert found.text.startswith("50 % of the speed of 'one' rank for rank, 2 times as fast in all")
    assert read_linearity(one, one).text.startswith("100 % of the speed of 'one' (80 samples/s on one rank")


def test_ranks_that_share_a_batch_have_their_part_of_it(tmp_path):
    one = run_of(tmp_path, "one", 0.1, 8.0)
    tensor = run_of(tmp_path, "tensor", 0.05, 8.0, 4, {"data": 2, "tensor": 2})
    assert read_linearity(tensor, one).share == pytest.approx(1.0)  # twice as fast, two ranks to a batch


def test_without_samples_steps_are_compared(tmp_path):
    for name, seconds in (("fast", 0.1), ("slow", 0.4)):
        records = [made_runs.record(step, step_seconds=seconds) for step in range(20)]
        made_runs.write_run(tmp_path / name, records)
    found = read_linearity(*(vario.open_run(tmp_path / name) for name in ("slow", "fast")))
    assert (found.unit, found.share) == ("steps/s", pytest.approx(0.25))


def test_the_report_compares_with_a_baseline(tmp_path, capsys):
    runs = [slowed_trainings.train(tmp_path / name, name) for name in ("loss", "nothing")]
    assert main(["report", str(runs[0].path), "--baseline", str(runs[1].path)]) == 0
    assert "% of the speed of 'nothing'" in capsys.readouterr().out
    assert main(["report", str(runs[0].path), "--baseline", str(runs[1].path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["linearity"]["per_rank"] < told["linearity"]["baseline_per_rank"]
    assert told["linearity"]["share"] < 0.9
    assert told["throughput"]["samples_per_day"] == pytest.approx(86_400 * told["throughput"]["samples_per_second"])


def test_a_baseline_whose_speed_is_not_known_is_refused(tmp_path, capsys):
    run = run_of(tmp_path, "run", 0.1, 8.0)
    made_runs.write_run(tmp_path / "short", [made_runs.record(0)])
    assert main(["report", str(run.path), "--baseline", str(tmp_path / "short")]) != 0
    assert "--baseline: the speed of this run or of 'short' is not known" in capsys.readouterr().err


@pytest.mark.slow
def test_two_real_ranks_beside_faster_ones(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    for name, pause in (("fast", "0.05"), ("slow", "0.2")):
        done = run_ranks(["train.py", name, pause], cwd=tmp_path, env=dict(os.environ))
        assert done.returncode == 0, done.stderr[-4000:]
    found = read_linearity(*(vario.open_run(tmp_path / "vario_runs" / name) for name in ("slow", "fast")))
    assert (found.num_ranks, found.baseline_ranks, found.unit) == (2, 2, "samples/s")
    # Of the steps after the first two; the machine may be busy, so they are what was recorded and not what was slept.
    for name, speed in (("slow", found.per_rank), ("fast", found.baseline_per_rank)):
        seconds = vario.open_run(tmp_path / "vario_runs" / name).series("step_seconds", "scalar").values[3:]
        assert speed == pytest.approx(8 * len(seconds) / seconds.sum(), rel=0.05)
    assert found.share == pytest.approx(found.per_rank / found.baseline_per_rank)
