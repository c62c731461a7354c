"""The table of runs over the thirty of a sweep: columns, sorting, filter, groups, pins; all of it in the address."""

import re

import pytest
from browsing import Visitor
from playwright.sync_api import expect

from vario.runs.run import list_runs
from vario.runs.table.summary import read_summary
from vario.runs.table.table import make_table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def best(sweep):
    """The names of all runs, the lowest validation loss first."""
    runs = [read_summary(run, run.name) for run in list_runs(sweep)]
    return [row.name for row in make_table(runs, [], sort=["val_loss:best"]).rows]


def rows(page):
    return page.get_by_role("rowgroup").get_by_role("row")


def test_the_best_of_thirty_is_found_in_three_clicks(open_list, best):
    page = open_list()
    expect(rows(page)).to_have_count(1)  # one process made them: one line
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("button", name="best val_loss", exact=True).click()
    page.get_by_role("columnheader", name="best val_loss").get_by_role("button").click()
    expect(rows(page).first).to_contain_text(best[0])
    expect(rows(page).nth(1)).to_contain_text(best[1])
    # The same address shows the same, and so does the way back from a run.
    again = open_list(page.url.partition("/?")[2].join(["?", ""]))
    expect(rows(again).first).to_contain_text(best[0])
    rows(again).first.get_by_role("link").first.click()
    expect(again.get_by_role("heading", level=1)).to_contain_text(best[0])
    again.get_by_role("link", name="Runs", exact=True).click()
    expect(rows(again).first).to_contain_text(best[0])


def test_a_filter_is_checked_by_the_server_and_kept_in_the_address(open_list):
    page = open_list()
    box = page.get_by_label("Filter runs")
    box.fill("lr = 0.1 and width in (4, 8)")
    expect(rows(page)).to_have_count(4)
    expect(page.get_by_text("4 match the filter")).to_be_visible()
    expect(page).to_have_url(re.compile("where=lr"))
    page.get_by_role("searchbox", name="Search runs").fill("s1")
    expect(rows(page)).to_have_count(2)


def test_a_wrong_filter_says_what_is_wrong(browser, sweep_server):
    visitor = Visitor(browser, f"http://127.0.0.1:{sweep_server.port}/")
    page = visitor("?where=lrr+>+1")
    expect(page.get_by_role("alert")).to_contain_text("no run has 'lrr'. Did you mean 'lr'?")
    page.get_by_label("Filter runs").fill("")
    expect(page.get_by_role("alert")).to_have_count(0)
    visitor.complaints = [told for told in visitor.complaints if "400" not in told]  # the browser reports the refusal
    visitor.leave()


def test_groups_have_means_and_can_be_folded(open_list):
    page = open_list("?columns=val_loss:best&by=width")
    head = page.get_by_role("button", name="width 4")
    expect(head).to_have_attribute("aria-expanded", "true")
    head.click()
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(rows(page).nth(1)).to_contain_text("width 8")
    expect(rows(page).first).to_contain_text("10 runs")


def test_runs_can_be_pinned_hidden_and_selected_by_search(open_list, best):
    page = open_list("?sort=val_loss:best")
    page.get_by_role("button", name=f"Pin {best[5]}").click()
    expect(rows(page).first).to_contain_text(best[5])
    page.get_by_role("button", name=f"Hide {best[0]}").click()
    expect(rows(page).nth(1)).to_contain_text(best[1])
    expect(page.get_by_text("1 hidden")).to_be_visible()
    page.get_by_role("searchbox", name="Search runs").fill("w16")
    page.get_by_role("checkbox", name="Select all runs that are shown").click()
    expect(page.get_by_role("region", name="Selected runs")).to_contain_text("10 runs selected")
    expect(page).to_have_url(re.compile(r"chosen=\*"))


def test_a_row_that_the_list_did_not_read_in_time_has_its_curve_with_the_table(open_list, best):
    short = {"spark": [], "host": "", "loss": None, "step": None, "is_read": False}
    told = []

    def answer(route):
        found = route.fetch().json()
        if not told:  # as the list of very many runs begins
            found["runs"] = [{**row, **short} for row in found["runs"]]
        told.append(route)
        route.fulfill(json=found)

    page = open_list("?list=effects")
    page.route("**/api/runs", answer)
    page.goto(f"{open_list.address}?columns=val_loss:best&columns=curve&sort=val_loss:best")
    expect(rows(page).first).to_contain_text(best[0])
    expect(page.get_by_role("img", name=f"Loss of {best[0]}")).to_be_visible()


def test_colours_follow_a_value(open_list):
    page = open_list("?columns=lr&tint=lr&sort=lr")
    colours = page.locator(".runs-tint")
    expect(colours.first).to_be_visible()
    first, last = (colours.nth(at).evaluate("mark => mark.style.background") for at in (0, 15))
    assert first
    assert first != last


def test_keys_move_pin_and_select(open_list, best):
    page = open_list("?sort=val_loss:best")
    expect(rows(page).first).to_contain_text(best[0])
    for key in ("j", "j", "x", "p"):
        page.keyboard.press(key)
    expect(page.get_by_role("region", name="Selected runs")).to_contain_text("1 run selected")
    expect(rows(page).first).to_contain_text(best[1])


def test_an_overlay_of_the_validation_loss_is_one_click_away(open_list):
    page = open_list()
    page.get_by_role("button", name="Charts").click()
    chart = page.get_by_role("figure", name=re.compile("^val_loss: 6 curves"))
    expect(chart).to_be_visible()
    expect(page.get_by_text("30 runs: the band is their range at each point")).to_be_visible()
    page.get_by_label("Group by").select_option("lr")
    expect(page.get_by_role("figure", name="val_loss: 5 curves")).to_be_visible()
    expect(page.locator(".chart-legend")).to_contain_text("lr 0.003 · 6 runs")
    page.get_by_label("Find a logged number").fill("acc")
    page.get_by_role("group", name="Logged numbers").get_by_role("button", name="accuracy").click()
    expect(page.get_by_role("figure")).to_have_count(2)
    page.get_by_role("button", name="Best so far").click()
    expect(page.get_by_role("figure", name="best accuracy: 5 curves")).to_be_visible()
    expect(page).to_have_url(re.compile("numbers=val_loss&numbers=accuracy&best=1"))


def test_charts_are_of_the_selected_runs_and_their_colours_differ(open_list):
    page = open_list("?list=charts&find=w8&along=epoch")
    expect(page.get_by_role("figure", name="val_loss: 10 curves")).to_be_visible()
    colours = page.locator(".chart-legend i").evaluate_all("marks => marks.map(mark => mark.style.background)")
    assert len(set(colours)) == 10


def test_what_mattered_is_named_with_its_correlation(open_list, sweep):
    page = open_list()
    page.get_by_role("button", name="What mattered").click()
    picture = page.get_by_role("img", name="Parallel coordinates of 30 runs")
    expect(picture.locator("polyline")).to_have_count(30)
    ranking = page.locator(".ranking button")
    expect(ranking.first).to_contain_text(re.compile(r"^lrcorrelation .0\.\d\d$"))
    scatter = page.get_by_role("group", name="Scatter of best val_loss by lr")
    expect(scatter.get_by_role("link")).to_have_count(30)
    ranking.filter(has_text="act").click()
    expect(page.get_by_text(re.compile(r"Explains \d+ % of the variance over 30 runs"))).to_be_visible()
    expect(page).to_have_url(re.compile("list=effects&setting=act"))
    page.get_by_label("Filter runs").fill("width = 4")
    expect(page.get_by_role("img", name="Parallel coordinates of 10 runs")).to_be_visible()
