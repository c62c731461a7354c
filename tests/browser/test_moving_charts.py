"""Moving along curves: by drag, wheel and keys, all charts together, and never out of the run."""

import re

import pytest
from browsing import box_of
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

TWO = "?run=healthy&screen=series&series=scalar|loss|value&series=gradient|head.weight|norm"
RANGE = re.compile(r"first=(\d+)&last=(\d+)")


def shown_range(page):
    """The first and last step that the address tells."""
    found = RANGE.search(page.url)
    return found and (int(found[1]), int(found[2]))


def test_shift_and_drag_moves_the_range_of_all_charts(visit):
    page = visit(TWO + "&first=20&last=39")
    box = box_of(page.locator(".u-over").nth(1))
    y = box["y"] + 40
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 0.7 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.2 * box["width"], y, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    # Half a chart to the left is half a range onwards.
    expect(page).to_have_url(re.compile(r"first=(29|30)&last=(48|49)"))


def test_keys_move_and_zoom_and_stay_inside_the_run(visit):
    page = visit(TWO)
    chart = page.locator(".chart-box").first
    box_of(page.locator(".u-over").nth(1))
    chart.focus()
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("first=1[45]&last=4[45]"))
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("first=2[01]&last=5[01]"))
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(30)
    # Beyond the first step there is nothing to see, and nothing the server would answer.
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".chart-legend li")).to_have_count(2)
    assert shown_range(page) == (0, 30)
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("first="))
