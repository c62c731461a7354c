"""Charts over the runs of a sweep: their own scale each, arranged, stored beside the runs, and very many of them."""

import json
import re
import shutil

import pytest
from browsing import Visitor
from playwright.sync_api import expect
from web_client import serving

pytestmark = pytest.mark.slow

NUMBERS = "?list=charts&numbers=val_loss&numbers=accuracy"


@pytest.fixture
def runs(sweep, tmp_path):
    """Some runs of the sweep in a folder of their own."""
    for name in ("lr0.1-w4-s0", "lr0.1-w8-s0", "lr0.3-w4-s0"):
        shutil.copytree(sweep / name, tmp_path / name)
    return tmp_path


def visitor_of(browser, server):
    return Visitor(browser, f"http://127.0.0.1:{server.port}/")


def titles(page):
    return page.get_by_role("figure").get_by_role("heading", level=2)


def test_each_chart_has_its_own_scale_and_smoothing_in_the_address(browser, runs):
    with serving(runs) as server:
        visitor = visitor_of(browser, server)
        page = visitor(NUMBERS)
        log = page.get_by_role("button", name="Log scale of val_loss")
        log.click()
        expect(log).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_role("button", name="Log scale of accuracy")).to_have_attribute("aria-pressed", "false")
        page.get_by_role("slider", name="Smoothing of accuracy").fill("0.6")
        expect(page).to_have_url(re.compile(r"draw=val_loss\|log\|0\|&draw=accuracy\|linear\|0.6\|"))
        again = visitor(page.url.partition("/?")[2].join(["?", ""]))
        expect(again.get_by_role("button", name="Log scale of val_loss")).to_have_attribute("aria-pressed", "true")
        expect(again.get_by_role("slider", name="Smoothing of accuracy")).to_have_value("0.6")
        # One choice for all of them takes the others back.
        again.get_by_role("group", name="Scale").get_by_role("button", name="Linear").click()
        again.get_by_role("group", name="Scale").get_by_role("button", name="Log", exact=True).click()
        expect(again.get_by_role("button", name="Log scale of accuracy")).to_have_attribute("aria-pressed", "true")
        expect(again).not_to_have_url(re.compile("draw="))
        visitor.leave()


def test_an_arrangement_is_stored_beside_the_runs_and_shown_to_the_next(browser, runs):
    before = sorted(path for path in runs.rglob("*"))
    with serving(runs, is_writable=True) as server:
        visitor = visitor_of(browser, server)
        page = visitor(NUMBERS)
        expect(titles(page)).to_have_text(["val_loss", "accuracy"])
        page.get_by_role("button", name="Move accuracy up").click()
        expect(titles(page)).to_have_text(["accuracy", "val_loss"])
        page.get_by_role("button", name="Wide chart of accuracy").click()
        page.get_by_role("button", name="Log scale of val_loss").click()
        page.get_by_role("button", name="Save charts").click()
        expect(page.get_by_role("button", name="Charts saved")).to_be_disabled()
        stored = json.loads((runs / ".vario" / "charts.json").read_text())
        assert stored["numbers"] == ["accuracy", "val_loss"]
        added = {path.relative_to(runs).parts[0] for path in runs.rglob("*") if path not in before}
        assert added == {".vario"}
        # Somebody who opens the charts of this folder sees them, and their address can be shared.
        other = visitor("?list=charts")
        expect(titles(other)).to_have_text(["accuracy", "val_loss"])
        expect(other.get_by_role("button", name="Log scale of val_loss")).to_have_attribute("aria-pressed", "true")
        expect(other).to_have_url(re.compile("numbers=accuracy&numbers=val_loss"))
        other.get_by_role("button", name="Remove accuracy").click()
        expect(titles(other)).to_have_text(["val_loss"])
        visitor.leave()
    with serving(runs) as server:
        visitor = visitor_of(browser, server)
        page = visitor("?list=charts")
        expect(titles(page)).to_have_text(["accuracy", "val_loss"])
        expect(page.get_by_role("button", name="Save charts")).to_have_count(0)
        visitor.leave()


def test_an_address_goes_before_what_is_stored(browser, runs):
    (runs / ".vario").mkdir()
    (runs / ".vario" / "charts.json").write_text(json.dumps({"format": 1, "numbers": ["accuracy"], "by": "width"}))
    with serving(runs) as server:
        visitor = visitor_of(browser, server)
        page = visitor("?list=charts&numbers=loss")
        expect(titles(page)).to_have_text(["loss"])
        expect(page.get_by_label("Group by")).to_have_value("")
        page = visitor("?list=charts")
        expect(titles(page)).to_have_text(["accuracy"])
        expect(page.get_by_label("Group by")).to_have_value("width")
        visitor.leave()


@pytest.mark.parametrize("along", ["step", "time", "epoch", "tokens"])
def test_curves_are_drawn_against_what_was_chosen(browser, sweep, tmp_path, along):
    with serving(sweep) as server:
        visitor = visitor_of(browser, server)
        page = visitor("?list=charts&find=w8&numbers=val_loss")
        page.get_by_label("Against").select_option(along if along != "step" else "")
        at = page.locator(".chart-at")
        expected = {"step": "step 15", "time": re.compile(r"s$"), "epoch": "epoch 3", "tokens": "tokens 8,192"}[along]
        expect(at).to_have_text(expected)
        expect(page.get_by_role("figure", name="val_loss: 10 curves")).to_be_visible()
        visitor.leave()


def test_zooming_keeps_fractions_of_epochs_and_whole_steps(open_list):
    page = open_list("?list=charts&find=w8&numbers=val_loss&along=epoch")
    expect(page.locator(".chart-at")).to_have_text("epoch 3")
    page.get_by_role("application").focus()
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("first=0.75&last=2.25"))
    page.reload()
    expect(page.locator(".chart-at")).to_have_text("epoch 2")
    expect(page).to_have_url(re.compile("first=0.75&last=2.25"))
    page = open_list("?list=charts&find=w8&numbers=loss")
    expect(page.locator(".chart-at")).to_have_text("step 15")
    page.get_by_role("application").focus()
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile(r"first=4&last=11(&|$)"))


def test_more_than_sixteen_runs_can_be_compared_and_are_drawn_together(browser, sweep):
    with serving(sweep) as server:
        visitor = visitor_of(browser, server)
        page = visitor("?sort=lr")
        page.get_by_role("checkbox", name="Select all runs that are shown").click()
        page.get_by_role("region", name="Selected runs").get_by_role("button", name="Compare").click()
        expect(page.get_by_role("figure", name="loss: 30 curves")).to_be_visible()
        expect(page.get_by_text("30 curves of 30 runs: the band is their range at each point").first).to_be_visible()
        visitor.leave()


def test_more_than_64_series_are_drawn_together(browser, tmp_path):
    import made_runs

    names = tuple(f"layers.{at}.weight" for at in range(70))
    store = made_runs.small_parts()
    store.open(made_runs.header(tmp_path / "wide"))
    for step in range(4):
        store.write(made_runs.record(step, made_runs.frame(step, targets=names), loss=1.0))
    store.close("finished", None)
    series = "".join(f"&series=gradient|{name}|norm" for name in names)
    with serving(tmp_path) as server:
        visitor = visitor_of(browser, server)
        page = visitor(f"?run=wide&screen=series{series}")
        expect(page.get_by_role("figure", name="gradient · norm: 70 curves")).to_be_visible()
        expect(page.get_by_text("70 curves: the band is their range at each point")).to_be_visible()
        expect(page.locator(".chart-legend li")).to_have_count(5)
        visitor.leave()
