"""Runs in which something is wrong with a rank, with the monitor or with memory: what their screens say of it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from browsing import Visitor
from playwright.sync_api import expect
from web_client import serving

import little_trainings
import vario
from starting import run_ranks
from vario.core.registry import Found
from vario.probes import PROBES

pytestmark = pytest.mark.slow

TWO_RANKS = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import vario

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if dist.get_rank() == 1:
    model.module[1].register_forward_hook(lambda *_: time.sleep(0.12))
with vario.watch(model, optimizer, every=1, name="two") as monitor:
    for step in range(100):
        if step == 12 and dist.get_rank() == 1:
            with torch.no_grad():
                model.module[2].weight[0, 3] += 0.5
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss.item())
dist.barrier()
dist.destroy_process_group()
"""


# Long parts on both ranks, so that what a busy machine adds does not matter.
ALIKE = TWO_RANKS.replace("if dist.get_rank() == 1:", "if True:").replace("if step == 12", "if step == -1")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """A training with a slow rank that also differs, and one with ranks that are alike, side by side: they sleep."""
    base = tmp_path_factory.mktemp("ranks")
    for name, script in (("apart", TWO_RANKS), ("alike", ALIKE.replace("range(100)", "range(50)"))):
        (base / name).mkdir()
        (base / name / "train.py").write_text(script)
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda name: run_ranks(["train.py"], cwd=base / name), ("apart", "alike")):
            assert done.returncode == 0, done.stderr
    return base


@pytest.fixture
def visit_ranks(browser, two_ranks):
    """Open pages over these trainings."""
    with serving(two_ranks) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        yield visitor
        visitor.leave()


def test_the_slow_rank_is_named_on_the_first_screen(visit_ranks):
    page = visit_ranks("?run=apart/vario_runs/two")
    expect(page.get_by_role("region", name="Straggler")).to_contain_text("Rank 1 is slow")
    expect(page.get_by_role("region", name="Desync")).to_contain_text("Ranks differ since step 12")


def test_a_slow_rank_and_one_that_differs_are_named(visit_ranks):
    page = visit_ranks("?run=apart/vario_runs/two&screen=ranks")
    slow = page.get_by_role("region", name="Straggler")
    expect(slow).to_contain_text("Rank 1 is slow")
    expect(slow).to_contain_text(re.compile(r"forward takes 1\d\d ms"))  # 120, and what a busy machine adds
    expect(slow).to_contain_text("in each step")
    times = page.get_by_role("region", name="Time of each rank")
    expect(times.get_by_role("columnheader", name="Forward")).to_be_visible()
    expect(times.get_by_role("row").nth(2).locator(".amber-text")).to_contain_text("ms")
    expect(times.get_by_role("row").nth(1).locator(".amber-text")).to_have_count(0)
    different = page.get_by_role("region", name="Desync")
    expect(different).to_contain_text("Ranks differ since step 12: weight of 2.weight")
    expect(different).to_contain_text("Rank 1 differs from most")
    slow.get_by_role("button", name="Show it").click()
    expect(page.get_by_role("figure")).to_contain_text("forward time, seconds")


def test_ranks_that_are_alike_are_said_to_be(visit_ranks):
    page = visit_ranks("?run=alike/vario_runs/two&screen=ranks")
    expect(page.get_by_role("region", name="Time of each rank")).to_contain_text("No rank is slow")
    expect(page.get_by_role("region", name="Straggler")).to_have_count(0)
    expect(page.get_by_role("region", name="Desync")).to_have_count(0)


def test_a_drop_of_gradients_is_not_called_a_spike(visit_below, tmp_path):
    little_trainings.train_with_drop(tmp_path / "fell")
    page = visit_below("?run=fell")
    expect(page.get_by_role("region", name="Root cause")).to_contain_text("gradient of 'blocks.1.0.weight' fell to")
    expect(page.locator("main")).not_to_contain_text("spike")
    page.get_by_role("link", name="Explain").click()
    expect(page.get_by_role("region", name="Incidents")).to_contain_text("gradient drop")
    about = page.get_by_role("link", name="gradient drop", exact=True)
    expect(about).to_have_attribute("href", "gallery#grad_spike")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_role("region", name="Alerts")).to_contain_text("gradient drop")
    expect(page.locator("main")).not_to_contain_text("spike")


class FailingProbe:
    """Fails at once."""

    quantity = "update"
    every = 1

    def attach(self, watched, recorder):
        def update_ended(optimizer):
            raise ValueError("no <b>room</b> for updates")

        watched.on_update_ended(recorder.guarded(self.quantity, update_ended))


def test_a_part_that_was_switched_off_is_told_with_its_reason(visit_below, tmp_path, monkeypatch):
    monkeypatch.setitem(PROBES._load(), "update", Found("update", FailingProbe, "tests"))
    quantities = ["gradient", "update"]
    little_trainings.train(tmp_path / "partly", steps=5, quantities=quantities, strict=False)
    page = visit_below("?run=partly")
    page.get_by_role("link", name="1 part off").click()
    off = page.get_by_role("listitem").filter(has_text="update")
    expect(off).to_contain_text("rank 0 · since step 0")
    expect(off).to_contain_text("ValueError: no <b>room</b> for updates")


def test_memory_is_shown_as_predicted_and_as_measured(visit_below, tmp_path):
    net = little_trainings.Net()
    optimizer = torch.optim.AdamW(net.parameters())
    predicted = vario.predict_memory(net, (torch.empty(32, 8),), optimizer=optimizer)
    with vario.watch(net, optimizer, directory=str(tmp_path), name="planned") as monitor:
        monitor.log(**predicted.scalars())
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(32, 8)).square().mean().backward()
            optimizer.step()
    little_trainings.train(tmp_path / "unplanned", steps=3)
    memory = visit_below("?run=planned&screen=model").locator(".memory")
    expected = predicted.scalars()["predicted_peak_bytes"]
    assert 1 << 20 < expected < 1 << 30
    expect(memory).to_contain_text(f"Predicted{float(f'{expected / 2**20:.3g}'):g}\u2009MiB")
    expect(memory).to_contain_text("peak of the process")
    memory = visit_below("?run=unplanned&screen=model").locator(".memory")
    expect(memory).to_contain_text("log vario.predict_memory(...).scalars() to get one")
