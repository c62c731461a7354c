"""The home of a run in a real browser: vital signs, the first cause, and the heat map."""

import re

import pytest
from browsing import IS_PINK, Visitor, asked, box_of
from playwright.sync_api import expect
from web_client import serving

import vario
from made_runs import frame, record, write_run

pytestmark = pytest.mark.slow

SURFACE = ".heat-surface"


def center(page, share_x, share_y):
    """A point of the heat map, as parts of its width and height."""
    box = box_of(page.locator(SURFACE))
    return box["x"] + share_x * box["width"], box["y"] + share_y * box["height"]


def place(page, heat_row, rows, step, steps):
    return center(page, (step + 0.5) / steps, (heat_row + 0.5) / rows)


def test_home_says_how_the_run_fares_and_what_broke_first(visit):
    page = visit("?run=deeper/broken")
    expect(page.get_by_role("heading", level=1)).to_have_text("broken")
    expect(page.get_by_label("Progress")).to_contain_text("step 59")
    expect(page.get_by_label("Progress")).to_contain_text("finished")
    cause = page.get_by_label("Root cause")
    expect(cause).to_contain_text("Step 45")
    expect(cause).to_contain_text("NaN")
    loss = page.get_by_label("Vital signs").get_by_role("link").filter(has_text="loss")
    expect(loss).to_contain_text("NaN")


def test_a_nan_has_a_colour_of_its_own_from_its_step_on(visit):
    broken = visit("?run=deeper/broken&quantity=gradient").locator(f"{SURFACE} canvas")
    expect(broken).to_be_visible()
    pink = broken.evaluate(IS_PINK)
    assert pink["number"] > 1000
    assert pink["first"] == pytest.approx(45 / 60, abs=0.02)
    healthy = visit("?run=healthy&quantity=gradient").locator(f"{SURFACE} canvas")
    expect(healthy).to_be_visible()
    assert healthy.evaluate(IS_PINK)["number"] == 0


def test_incidents_are_marked_at_their_step_and_lead_to_their_explanation(visit):
    page = visit("?run=deeper/broken&quantity=gradient")
    flag = page.get_by_role("button", name=re.compile("Step 45: .* Open in alerts"))
    box = box_of(flag)
    left = box["x"] + box["width"] / 2
    # The middle of its column, where the axis has the label of that step.
    assert left == pytest.approx(center(page, 45.5 / 60, 0)[0], abs=2)
    flag.click()
    expect(page).to_have_url(re.compile("screen=alerts"))


def test_hovering_gives_the_number_that_was_recorded(visit, folder):
    page = visit("?run=healthy&quantity=gradient&only=blocks.1.0.weight")
    expect(page.locator(SURFACE)).to_be_visible()
    page.mouse.move(*place(page, 0, 1, 20, 60))
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("blocks.1.0.weight")
    expect(tip).to_contain_text("step 20")
    series = vario.open_run(folder / "healthy").series("blocks.1.0.weight", "gradient", "norm")
    shown = tip.locator(".tip-value span").inner_text()
    assert float(shown) == pytest.approx(series.values[20], rel=1e-3)


def test_a_click_on_a_row_opens_its_series(visit):
    page = visit("?run=healthy&quantity=gradient&only=head.weight")
    expect(page.locator(SURFACE)).to_be_visible()
    page.mouse.click(*place(page, 0, 1, 20, 60))
    expect(page).to_have_url(re.compile(r"screen=series.*series=gradient\|head.weight\|norm"))
    expect(page.get_by_role("figure")).to_contain_text("head.weight")


def test_dragging_asks_the_server_for_that_range_and_a_double_click_goes_back(visit):
    page = visit("?run=healthy&quantity=gradient")
    expect(page.locator(SURFACE)).to_be_visible()
    requests = asked(page, "api/heat")
    page.mouse.move(*place(page, 5, 10, 20, 60))
    page.mouse.down()
    page.mouse.move(*place(page, 5, 10, 25, 60), steps=3)
    page.mouse.move(*place(page, 5, 10, 29, 60), steps=3)
    page.mouse.up()
    expect(page).to_have_url(re.compile("first=20&last=29"))
    expect(page.locator(".heat-note")).to_contain_text("10 columns")
    assert len(requests) == 1
    assert "first=20&last=29" in requests[0]
    page.locator(SURFACE).dblclick(position={"x": 4, "y": 4})
    expect(page.locator(".heat-note")).to_contain_text("60 columns")


def test_quantity_and_statistic_can_be_switched(visit):
    page = visit("?run=healthy")
    page.get_by_label("Quantity").select_option("weight")
    expect(page.locator(SURFACE)).to_have_attribute("aria-label", re.compile("^weight norm"))
    page.get_by_label("Statistic").select_option("std")
    expect(page.locator(SURFACE)).to_have_attribute("aria-label", re.compile("^weight std"))
    expect(page).to_have_url(re.compile("quantity=weight&statistic=std"))


def test_a_search_among_very_many_rows_finds_those_that_share_one(browser, tmp_path):
    names = [f"layers.{index}.{part}" for index in range(600) for part in ("weight", "bias")]
    write_run(tmp_path / "wide", [record(step, frame(step, targets=names)) for step in range(3)])
    with serving(tmp_path) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?run=wide&quantity=gradient")
        note = page.locator(".heat-note")
        expect(note).to_contain_text("1,200 targets in 800 rows")
        searching = page.get_by_label("Filter rows by name")
        for text, number in (("layers.59*.bias", 11), ("59 bias", 11 + 5)):
            searching.fill(text)
            expect(note).to_have_text(re.compile(f"^{number} rows"))
        searching.fill("nothing like it")
        expect(page.get_by_text("No rows match 'nothing like it'")).to_be_visible()
        page.get_by_role("button", name="Show all rows").click()
        expect(note).to_contain_text("in 800 rows")
        visitor.leave()


def test_a_module_folds_into_one_row_and_back(visit):
    page = visit("?run=healthy&quantity=gradient")
    rows = page.locator(".row-name")
    expect(rows).to_have_count(10)
    page.get_by_role("button", name="Fold blocks", exact=True).click()
    expect(rows).to_have_count(5)
    expect(page).to_have_url(re.compile("closed=blocks"))
    folded = page.get_by_role("button", name="▸ blocks")
    expect(folded).to_contain_text("6")
    folded.click()
    expect(rows).to_have_count(10)


def test_the_table_behind_the_heat_map_names_the_first_bad_step(visit):
    page = visit("?run=deeper/broken&quantity=gradient&only=head.weight")
    page.get_by_role("button", name="Table").click()
    row = page.get_by_role("row").filter(has_text="head.weight")
    expect(row).to_contain_text("step 45")


def test_colour_by_change_shows_rows_against_their_own_usual(visit):
    page = visit("?run=changed&quantity=weight")
    expect(page.locator(".legend")).to_be_visible()
    page.get_by_role("button", name="Vs usual").click()
    expect(page.locator(".legend")).to_contain_text("usual")
    expect(page).to_have_url(re.compile("colour=change"))
