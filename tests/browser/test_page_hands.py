"""Hands and eyes: keys, labels of thin rows, one syntax of searches, one look of a severity, a curve that stays."""

import re
from itertools import pairwise

import pytest
from browsing import Visitor, box_of
from playwright.sync_api import expect
from web_client import serving

import little_trainings
import made_runs

pytestmark = pytest.mark.slow

NAMES = tuple(f"layers.{at}.{part}.weight" for at in range(150) for part in ("q", "k", "v", "o"))


@pytest.fixture(scope="module")
def hands(tmp_path_factory):
    """A run of 600 rows, one that broke, and one in order."""
    place = tmp_path_factory.mktemp("hands")
    store = made_runs.small_parts()
    store.open(made_runs.header(place / "wide"))
    for step in range(6):
        store.write(made_runs.record(step, made_runs.frame(step, targets=NAMES), loss=1 / (1 + step)))
    store.close("finished", None)
    little_trainings.train(place / "broken", steps=30, nan_step=20)
    little_trainings.train(place / "healthy", steps=40)
    with serving(place) as found:
        yield found


@pytest.fixture
def open_page(browser, hands):
    visitor = Visitor(browser, f"http://127.0.0.1:{hands.port}/")
    yield visitor
    visitor.leave()


def names(page):
    return page.locator(".runs-list .runs-name a").all_inner_texts()


@pytest.mark.parametrize("key", ["Enter", "Escape", "ArrowDown", "ArrowUp"])
def test_arrows_enter_and_esc_leave_a_search(open_page, key):
    page = open_page()
    expect(page.locator(".runs-list .runs-row")).to_have_count(3)
    for box in (page.get_by_role("searchbox", name="Search runs"), page.get_by_label("Filter runs")):
        box.focus()
        page.keyboard.press(key)
        expect(box).not_to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(".runs-row.is-current")).to_have_count(1)


def test_an_arrow_goes_from_the_search_into_the_list(open_page):
    page = open_page()
    expect(page.locator(".runs-list .runs-row")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("h")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".runs-row.is-current")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("run=healthy"))


def test_enter_goes_from_the_search_into_the_heat_map(open_page):
    page = open_page("?run=healthy")
    expect(page.locator(".heat-surface")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("weight")
    page.keyboard.press("Enter")
    expect(page.locator(".heat-surface")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".heat [role=status]")).to_contain_text("step")


def test_letters_work_after_a_slider(open_page):
    page = open_page("?run=healthy&screen=series")
    slider = page.get_by_role("slider", name="Smoothing", exact=True)
    slider.focus()
    before = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("t")
    expect(page.locator("html")).not_to_have_attribute("data-theme", before or "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("re:^(wide|healthy)$", {"wide", "healthy"}),
        ("h?althy", {"healthy"}),
        ("*ok*", {"broken"}),
        ("re:(", set()),
        ("WIDE", {"wide"}),
    ],
)
def test_runs_are_found_by_globs_and_expressions(open_page, text, found):
    page = open_page()
    expect(page.locator(".runs-list .runs-row")).to_have_count(3)
    page.get_by_role("searchbox", name="Search runs").fill(text)
    if found:
        expect(page.locator(".runs-list .runs-row")).to_have_count(len(found))
        assert set(names(page)) == found
    else:
        expect(page.get_by_text("No matching runs")).to_be_visible()


def test_the_same_expressions_find_rows_targets_modules_and_numbers(open_page):
    page = open_page("?run=wide")
    page.get_by_label("Filter rows by name").fill("re:layers\\.[0-3]\\.q")
    expect(page.locator(".heat-note")).to_contain_text("4 rows")
    page = open_page("?run=wide&screen=series")
    page.get_by_label("Find a series to add").fill("re:layers\\.[0-3]\\.q")
    options = page.get_by_role("listbox", name="Series").get_by_role("option")
    expect(options).to_have_count(4)
    page.get_by_label("Find a series to add").fill("layers.?.k*")
    expect(options).to_have_count(10)
    page = open_page("?run=healthy&screen=model")
    page.get_by_label("Find a module").fill("re:Linear$")
    expect(page.locator(".model-row:not(.is-head)").first).to_contain_text("Linear")
    page = open_page("?list=charts")
    page.get_by_label("Find a logged number").fill("re:^l.ss$")
    expect(page.get_by_role("group", name="Logged numbers").get_by_role("button")).to_have_text(["loss"])


def test_600_rows_have_a_label_every_few_rows_and_under_the_pointer(open_page):
    page = open_page("?run=wide&quantity=gradient")
    page.get_by_role("button", name="Unfold all modules").click()
    expect(page.locator(".heat-note")).to_contain_text("600 rows")
    shown = page.locator(".row-name")
    expect(shown.nth(10)).to_be_visible()
    boxes = [found["top"] for found in shown.evaluate_all("names => names.map(name => name.getBoundingClientRect())")]
    assert len(boxes) >= 20
    assert min(after - before for before, after in pairwise(boxes)) >= 11
    surface = page.locator(".heat-surface")
    box = box_of(surface)
    row = 301
    page.mouse.move(box["x"] + 30, box["y"] + box["height"] * (row + 0.5) / len(NAMES))
    expect(page.locator(".row-name.is-hovered")).to_contain_text(NAMES[row].partition("layers.")[2])


def test_hovering_does_not_fade_the_only_curve(open_page):
    page = open_page("?run=healthy&screen=series&series=scalar|loss|value")
    canvas = page.locator(".u-wrap canvas")
    box = box_of(canvas)
    page.mouse.move(1, 1)
    picture = "canvas => canvas.toDataURL()"
    before = canvas.evaluate(picture)
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.3)
    expect(page.locator(".chart-at")).not_to_have_text("step 39")
    assert canvas.evaluate(picture) == before


def test_the_crosshair_stands_on_the_step_that_is_told(open_page):
    page = open_page("?run=healthy&screen=series&series=scalar|loss|value")
    over = page.locator(".u-over")
    box = box_of(over)
    page.mouse.move(box["x"] + box["width"] * 0.512, box["y"] + 40)
    told = page.locator(".chart-at")
    expect(told).to_have_text("step 20")
    line = page.locator(".u-cursor-x")
    left = line.evaluate("line => line.getBoundingClientRect().left") - box["x"]
    assert abs(left - box["width"] * 20 / 39) < 1.5


def test_a_severity_has_one_icon_and_one_colour_everywhere(open_page):
    looks = set()
    for query in ("", "?run=broken", "?run=broken&screen=alerts"):
        page = open_page(query)
        icons = page.locator("main svg[data-severity=page]")
        expect(icons.first).to_be_visible()
        looks |= set(
            icons.evaluate_all(
                "icons => icons.map(icon => icon.firstChild.getAttribute('d') + ' ' + getComputedStyle(icon).fill)"
            )
        )
    assert len(looks) == 1


def test_token_ids_are_grey_in_the_heat_map(browser, tmp_path):
    import torch
    from torch import nn

    import vario

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50_000, 8), nn.Flatten(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"quantities": ["activation"], "every": 1, "strict": True}
    with vario.watch(model, optimizer, directory=str(tmp_path), name="words", **options) as monitor:
        for _ in range(8):
            loss = model(torch.randint(40_000, 50_000, (4, 4))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    with serving(tmp_path) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?run=words&quantity=activation&statistic=absmax")
        box = box_of(page.locator(".heat-surface"))
        rows = page.locator(".row-name").all_inner_texts()
        at = next(index for index, name in enumerate(rows) if ":input" in name)
        page.mouse.move(box["x"] + 40, box["y"] + box["height"] * (at + 0.5) / len(rows))
        expect(page.get_by_role("tooltip")).to_contain_text("token ids")
        pixel = page.locator(".heat-surface canvas").first.evaluate(
            "(canvas, at) => [...canvas.getContext('2d').getImageData(30, canvas.height * at, 1, 1).data]",
            (at + 0.5) / len(rows),
        )
        assert max(pixel[:3]) - min(pixel[:3]) < 10
        assert pixel[3] == 90
        visitor.leave()
