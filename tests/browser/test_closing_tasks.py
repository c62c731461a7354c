"""What people come for: the best of thirty and why, an overlay, and what broke, named on the first screen."""

import re

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

import little_trainings
import vario
from vario.runs.run import list_runs
from vario.runs.table.summary import read_summary
from vario.runs.table.table import make_table

pytestmark = pytest.mark.slow

NAN_STEP = 37


class Hand:
    """Clicks, and counts them."""

    def __init__(self):
        self.clicks = 0

    def click(self, locator):
        locator.click()
        self.clicks += 1


def test_the_best_of_thirty_and_why_in_at_most_five_clicks(open_list, sweep):
    runs = [read_summary(run, run.name) for run in list_runs(sweep)]
    best = make_table(runs, [], sort=["val_loss:best"]).rows[0].name
    page, hand = open_list(), Hand()
    hand.click(page.get_by_role("button", name="Columns"))
    hand.click(page.get_by_role("button", name="best val_loss", exact=True))
    hand.click(page.get_by_role("columnheader", name="best val_loss").get_by_role("button"))
    expect(page.get_by_role("rowgroup").get_by_role("row").first).to_contain_text(best)
    hand.click(page.get_by_role("button", name="What mattered"))
    expect(page.locator(".ranking button").first).to_contain_text(re.compile(r"^lrcorrelation .0\.\d\d$"))
    assert hand.clicks <= 5


def test_an_overlay_of_the_validation_loss_in_at_most_three_clicks(open_list):
    page, hand = open_list(), Hand()
    hand.click(page.get_by_role("button", name="Charts"))
    expect(page.get_by_role("figure", name=re.compile("^val_loss: "))).to_be_visible()
    assert hand.clicks <= 3


def test_a_nan_at_an_odd_step_is_named_on_the_first_screen(visit_below, tmp_path):
    """Only every tenth step is watched, and this is not one of them."""
    little_trainings.train(tmp_path / "odd", steps=60, nan_step=NAN_STEP, every=10)
    page = visit_below("?run=odd")
    cause = page.get_by_role("region", name="Root cause")
    expect(cause).to_contain_text(f"Since step {NAN_STEP}, at step 40:")
    expect(cause).to_contain_text("NaN")


def test_a_diverging_run_is_named_on_the_first_screen(visit_below, tmp_path):
    """A learning rate that is far too high from its first step on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    teacher = torch.randn(8, 1)
    with vario.watch(model, optimizer, directory=str(tmp_path), name="high", every=1) as monitor:
        for step in range(120):
            if step == 60:
                optimizer.param_groups[0]["lr"] = 2.0
            x = torch.randn(64, 8)
            loss = (model(x) - (x @ teacher)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    page = visit_below("?run=high")
    cause = page.get_by_role("region", name="Root cause")
    expect(cause).to_contain_text(re.compile("Step 60: learning rate went from 0.02 to 2"))
    page.goto(visit_below.address)
    expect(page.locator(".runs-alerts .count").first).to_be_visible()
