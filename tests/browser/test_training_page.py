"""A page that is open while the run trains: it follows by events, without asking again for what it has."""

import re

import pytest
import torch
from browsing import IS_PINK, Visitor, asked
from playwright.sync_api import expect
from web_client import serving

import little_trainings
import vario

pytestmark = pytest.mark.slow


class Training:
    """A real training that takes its steps when it is told to."""

    def __init__(self, path):
        torch.manual_seed(0)
        self.model = little_trainings.Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.batches = torch.Generator().manual_seed(1)
        where = {"directory": str(path.parent), "name": path.name}
        self.monitor = vario.watch(self.model, self.optimizer, quantities=["gradient", "weight"], every=1, **where)

    def steps(self, number, scale=1.0):
        for _ in range(number):
            self.optimizer.zero_grad()
            loss = self.model(scale * torch.randn(4, 8, generator=self.batches)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.monitor.log(loss=loss.item())


@pytest.fixture
def training(tmp_path):
    found = Training(tmp_path / "runs" / "training")
    yield found
    found.monitor.close()


@pytest.fixture
def visit(browser, training, tmp_path):
    training.steps(5)
    with serving(tmp_path / "runs") as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        yield visitor
        visitor.leave()


def test_columns_that_arrive_before_an_older_answer_stay(visit, training):
    """The map is asked for again while a training goes on, and its answer comes after events that are newer."""
    page = visit("?run=training&quantity=gradient")
    expect(page.locator(".live")).to_have_text("live")
    expect(page.locator(".heat-note")).to_contain_text(re.compile(r"\b[45] columns"))
    held = []
    page.route("**/api/heat?*", lambda route: held.append((route, route.fetch())))
    with page.expect_request("**/api/heat?*"):
        page.evaluate("dispatchEvent(new Event('server-back'))")
    training.steps(20)
    expect(page.locator(".heat-note")).to_contain_text(re.compile(r"2[45] columns"))
    route, older = held[0]
    with page.expect_response("**/api/heat?*"):
        route.fulfill(response=older)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.locator(".is-stale")).to_have_count(0)
    assert re.search(r"2[45] columns", page.locator(".heat-note").inner_text())


def test_the_heat_map_grows_with_the_training_and_ends_with_it(visit, training):
    page = visit("?run=training&quantity=gradient")
    note = page.locator(".heat-note")
    expect(note).to_contain_text(re.compile(r"\b[45] columns"))
    expect(page.locator(".live")).to_have_text("live")
    heats = asked(page, "api/heat")
    training.steps(20)
    expect(note).to_contain_text(re.compile(r"2[45] columns"))
    expect(page.get_by_label("Progress")).to_contain_text(re.compile("step 2[34]"))
    assert heats == []

    training.steps(3, scale=float("nan"))
    expect(page.get_by_label("Root cause")).to_contain_text("NaN")
    expect(page.locator(".tabs em")).to_be_visible()
    pink = page.locator(".heat-surface canvas").evaluate(IS_PINK)
    assert pink["number"] > 0
    assert heats == []

    training.monitor.close()
    expect(page.get_by_label("Progress")).to_contain_text("finished")
    expect(page.locator(".live")).not_to_have_text("live")
    expect(note).to_contain_text("28 columns")


LATE_COLUMNS = """
const listen = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (name, hear) {
  const late = (event) => setTimeout(() => this.readyState !== EventSource.CLOSED && hear(event), 300);
  listen.call(this, name, name === "progress" ? hear : late);
};
"""
"""A slow network between the first event of a look and those behind it; a stream that was closed tells nothing."""


def test_the_last_columns_come_in_though_the_end_was_told_before_them(visit, training):
    page = visit("?run=training&quantity=gradient", script=LATE_COLUMNS)
    note = page.locator(".heat-note")
    expect(note).to_contain_text(re.compile(r"\b[45] columns"))
    expect(page.locator(".live")).to_have_text("live")
    training.steps(7)
    training.monitor.close()
    expect(note).to_contain_text("12 columns")
    expect(page.get_by_label("Progress")).to_contain_text("finished")
    expect(page.locator(".live")).not_to_have_text("live")


def test_a_curve_goes_on_with_the_training(visit, training):
    page = visit("?run=training&screen=series&series=scalar|loss|value")
    at = page.locator(".chart-at")
    expect(at).to_have_text(re.compile("step [34]"))
    expect(page.locator(".live")).to_have_text("live")
    requests = asked(page, "api/series")
    training.steps(15)
    expect(at).to_have_text(re.compile("step (18|19)"))
    assert requests == []


def test_the_list_of_runs_follows_and_a_new_run_comes_first(visit, training, tmp_path):
    page = visit()
    row = page.get_by_role("row").filter(has_text="training")
    expect(row).to_contain_text("running")
    training.steps(10)
    expect(row).to_contain_text(re.compile("step 1[34]"))
    little_trainings.train(tmp_path / "runs" / "later", steps=3)
    expect(page.get_by_role("row").nth(1)).to_contain_text("later")
    training.monitor.close()
    expect(row).to_contain_text("finished")
