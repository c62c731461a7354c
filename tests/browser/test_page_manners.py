"""How the page behaves to everybody: keys, phones, dark rooms, nasty names, servers that go away."""

import re

import pytest
from browsing import MARKUP_NAME, Visitor
from playwright.sync_api import expect
from web_client import serving

import little_trainings

pytestmark = pytest.mark.slow

SCREENS = ("home", "series", "changes", "alerts", "ranks", "compare", "model", "settings")


PRESS_AT_ONCE = """new MutationObserver((_, observer) => {
  if (!document.querySelector('.runs-list .runs-row')) return;
  observer.disconnect();
  document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'j', bubbles: true }));
}).observe(document, { childList: true, subtree: true });"""
"""Press a key as soon as the rows are in the document, before they are painted."""


def test_a_key_pressed_before_the_list_is_painted_counts(visit):
    page = visit(script=PRESS_AT_ONCE)
    expect(page.locator(".runs-row.is-current")).to_have_count(1)


def test_lists_and_screens_are_reached_by_keys(visit):
    page = visit()
    expect(page.get_by_role("row")).to_have_count(5)
    page.keyboard.press("j")
    page.keyboard.press("j")
    name = page.locator(".runs-row.is-current .runs-name a").inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.keyboard.press("7")
    expect(page).to_have_url(re.compile("screen=model"))
    expect(page.get_by_label("Find a module")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Find a module")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next or previous row")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_heat_map_is_read_and_opened_by_keys(visit):
    page = visit("?run=healthy&quantity=gradient")
    surface = page.locator(".heat-surface")
    surface.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    status = page.locator(".heat [role=status]")
    expect(status).to_contain_text("first.bias, step 58")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"series=gradient\|first.bias\|norm"))


def test_light_and_dark_follow_the_system_and_the_switch(visit):
    page = visit("?run=healthy", dark=True)
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(background) == "rgb(13, 18, 24)"
    page.get_by_role("button", name="Use light colours").click()
    assert page.evaluate(background) == "rgb(245, 246, 248)"
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate(background) == "rgb(245, 246, 248)"


def test_no_screen_is_wider_than_its_window(visit):
    pages = {width: visit("?run=deeper/broken", width=width, height=844) for width in (390, 1280)}
    for screen in SCREENS:
        # Both load at the same time: until a network is idle takes half a second.
        for page in pages.values():
            page.goto(f"{visit.address}?run=deeper/broken&screen={screen}&runs=healthy")
        for width, page in pages.items():
            expect(page.locator(".card, .chart").first).to_be_visible()
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (screen, width)
    for width, page in pages.items():
        page.goto(visit.address)
        expect(page.get_by_role("row").first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_tap_on_a_phone_tells_the_number_and_a_second_one_opens_it(visit):
    page = visit("?run=healthy&quantity=gradient", width=390, height=844, touch=True)
    surface = page.locator(".heat-surface")
    surface.tap(position={"x": 100, "y": 30})
    expect(page.get_by_role("tooltip")).to_contain_text("step")
    expect(page).not_to_have_url(re.compile("screen=series"))
    surface.tap(position={"x": 100, "y": 30})
    expect(page).to_have_url(re.compile("screen=series"))


def test_a_run_named_like_markup_is_text_everywhere(visit):
    page = visit()
    page.get_by_role("link", name=MARKUP_NAME).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP_NAME)
    for screen in SCREENS:
        page.keyboard.press(str(SCREENS.index(screen) + 1))
        expect(page.locator("[aria-current=page]")).to_be_visible()
    assert page.locator("img").count() == 0


def test_an_unknown_run_says_so_and_an_empty_folder_says_what_to_do(browser, visit, tmp_path):
    page = visit("?run=nothing")
    expect(page.get_by_text("No run found")).to_be_visible()
    assert all("404" in complaint for complaint in visit.complaints)
    visit.complaints.clear()
    with serving(tmp_path) as server:
        empty = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = empty()
        expect(page.get_by_text("No runs yet")).to_be_visible()
        expect(page.get_by_text("vario demo")).to_be_visible()
        little_trainings.train(tmp_path / "first", steps=3)
        expect(page.get_by_role("row").filter(has_text="first")).to_be_visible()
        empty.leave()


def test_without_its_token_the_page_says_where_to_find_it(browser, folder):
    with serving(folder, token="secret") as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?token=secret")
        expect(page.get_by_role("row").filter(has_text="healthy")).to_be_visible()
        assert "token" not in page.url
        page.context.clear_cookies()
        page.get_by_role("link", name="healthy").click()
        expect(page.get_by_text("This page needs a token")).to_be_visible()
        assert all("401" in complaint for complaint in visitor.complaints)


def test_a_shared_address_asks_for_the_token_and_then_shows_what_was_meant(browser, folder):
    with serving(folder, token="secret") as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?run=healthy&screen=series&series=scalar|loss|value&only=%22%3E%3Cb%3E")
        expect(page.get_by_role("heading")).to_have_text("This page needs a token")
        page.get_by_label("Token").fill("guess")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("Wrong token")).to_be_visible()
        page.get_by_label("Token").fill("secret")
        page.get_by_label("Token").press("Enter")
        expect(page.get_by_role("figure")).to_contain_text("loss")
        assert "token" not in page.url
        assert "series=scalar" in page.url
        assert all("401" in complaint for complaint in visitor.complaints)


def test_a_server_that_is_gone_is_told_and_what_was_seen_stays(browser, folder):
    with serving(folder) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?run=healthy")
        expect(page.locator(".heat-surface")).to_be_visible()
    page.get_by_label("Quantity").select_option("weight")
    expect(page.get_by_role("alert")).to_contain_text("The server does not respond")
    expect(page.locator(".heat-surface")).to_be_visible()
    assert all("ERR_" in complaint for complaint in visitor.complaints)
