"""Two real ranks under DDP, with a loader: what every reader says of a rank that is slow, and of two that are not.

The steps are paced, as if a device worked, so what the ranks share of a processor does not decide it.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from web_client import serving

import made_runs
import vario
from starting import run_ranks
from vario.cli import main
from vario.web.live.watching import RunLooks
from vario.web.served import Served

TESTS = Path(__file__).parents[1]
LATE_FROM = 20
TRAIN = """
import sys, time
import torch, vario
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
fault, step = sys.argv[1], 0

def work(seconds, part):
    # The device works for this long, and longer where and when this rank has the fault.
    has_fault = fault == part and dist.get_rank() == 1 and (part != "backward" or step >= LATE_FROM)
    time.sleep(seconds + (0.15 if has_fault else 0.0))

class Rows(Dataset):
    def __len__(self):
        return 90
    def __getitem__(self, row):
        work(0.001, "data")
        return torch.randn(16)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)
    @staticmethod
    def backward(context, gradient):
        work(0.02, "backward")
        return gradient

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
    def forward(self, x):
        work(2.0 if fault == "first step" and step == 0 and dist.get_rank() else 0.02, "forward")
        return self.second(Backward.apply(self.first(x)))

model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with vario.watch(model, optimizer, directory="runs", name=fault, quantities=["gradient", "checksum"]) as monitor:
    for step, x in enumerate(DataLoader(Rows(), batch_size=1)):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss.item())
dist.barrier()
dist.destroy_process_group()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trainings with a rank that waits for data, one that is slow in backward from some step on, and two without."""
    folder = tmp_path_factory.mktemp("paced")
    (folder / "train.py").write_text(TRAIN.replace("LATE_FROM", str(LATE_FROM)))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    train = partial(run_ranks, cwd=folder, env=variables)
    # Side by side: they mostly sleep, and a slow rank has to be slow for ten seconds.
    with ThreadPoolExecutor() as pool:
        for done in pool.map(train, (["train.py", fault] for fault in ("data", "backward", "first step"))):
            assert done.returncode == 0, done.stderr[-3000:]
    return folder / "runs"


def printed(capsys, *words):
    main([*map(str, words)])
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("fault", "part", "noun", "began"),
    [("data", "wait_seconds", "loading data", 1), ("backward", "backward_seconds", "backward takes", LATE_FROM)],
)
def test_all_readers_name_the_rank_the_part_and_the_step(runs, capsys, fault, part, noun, began):
    path = runs / fault
    run = vario.open_run(path)
    [incident] = [one for one in run.incidents if one.lead.rule == "straggler"]
    assert (incident.rank, incident.lead.target, incident.lead.began) == (1, part, began)
    diagnosis = vario.diagnose(run)
    assert diagnosis.first.lead.rule == "straggler"
    assert diagnosis.hypotheses[0].name == ("data" if fault == "data" else "hardware")
    for words in (["report", path], ["diagnose", path], ["check", path]):
        said = printed(capsys, *words)
        assert f"rank 1 is slow: {noun}" in said.replace("Rank 1", "rank 1")
        assert f"since step {began}" in said
    with serving(runs) as client:
        verdict = client.get("/api/ranks", run=fault)["verdict"]
        assert [one["rule"] for one in client.get("/api/run", run=fault)["incidents"]] == ["straggler"]
    [slow] = verdict["slow"]
    assert (verdict["kind"], slow["rank"], slow["target"], slow["since"]) == ("slow", 1, part, began)
    times = {one["rank"]: one[part] for one in verdict["times"]}
    assert times[1] > times[0] + 0.1
    # The other rank waits for it, in none of its own parts.
    assert verdict["times"][0]["rest_seconds"] > verdict["times"][1]["rest_seconds"] + 0.1


def test_of_two_ranks_that_are_alike_nobody_names_one(runs, capsys):
    path = runs / "first step"
    assert not [one for one in vario.open_run(path).incidents if one.lead.rule == "straggler"]
    for words in (["report", path], ["diagnose", path]):
        said = printed(capsys, *words)
        assert "No rank is slow" in said
        assert "is slow:" not in said
    with serving(runs) as client:
        verdict = client.get("/api/ranks", run="first step")["verdict"]
    assert (verdict["kind"], verdict["slow"]) == ("even", [])


def test_a_page_that_shows_a_run_learns_at_its_end_what_the_ranks_compared_show(tmp_path):
    stores = []
    for rank in range(2):
        stores.append(made_runs.Store())
        stores[-1].open(made_runs.header(tmp_path / "job", rank=rank, world_size=2))
        for step in range(60):
            stores[-1].write(made_runs.record(step, forward_seconds=0.2 if rank else 0.1, step_seconds=0.3))
    looks = RunLooks(Served(tmp_path), "job")
    assert (looks.look().state, looks.look().incidents) == ("running", [])
    for store in stores:
        store.close("finished", None)
    over = looks.look()
    assert over.is_over
    assert [(one["rule"], one["rank"]) for one in over.incidents] == [("straggler", 1)]


def test_the_json_of_a_report_has_the_verdict(runs, capsys):
    main(["report", str(runs / "data"), "--json"])
    verdict = json.loads(capsys.readouterr().out)["diagnosis"]["rank_verdict"]
    assert verdict["kind"] == "slow"
    assert verdict["slow"][0]["rank"] == 1
