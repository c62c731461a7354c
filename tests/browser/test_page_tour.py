"""The first visit: four marks explain the home screen, and every alert leads to the gallery of faults."""

import re

import pytest
from browsing import Visitor
from playwright.sync_api import expect
from web_client import serving

import little_trainings
from vario.rules import RULES

pytestmark = pytest.mark.slow

TOUR = "Tour of the home screen"


@pytest.fixture
def demo(tmp_path):
    """A run that broke, told to be the demo's."""
    run = little_trainings.train(tmp_path / "demo", steps=20, nan_step=12)
    header = tmp_path / "demo" / "run.json"
    text = re.sub(r'"command": "[^"]*"', '"command": "/usr/bin/vario demo --serve"', header.read_text())
    header.write_text(text)
    return run


def tour(page):
    return page.get_by_role("complementary", name=TOUR)


def test_an_empty_folder_explains_the_home_screen_until_it_is_dismissed(visit_below):
    page = visit_below()
    expect(tour(page).get_by_role("listitem")).to_have_count(4)
    expect(page.get_by_text("No runs yet")).to_be_visible()
    tour(page).get_by_role("button", name="Got it").click()
    expect(tour(page)).to_have_count(0)
    page.reload()
    expect(page.get_by_text("No runs yet")).to_be_visible()
    expect(tour(page)).to_have_count(0)


def test_the_demo_has_four_marks_where_they_belong(visit_below, demo):
    page = visit_below("?run=demo")
    expect(tour(page).get_by_role("listitem")).to_have_count(4)
    for number, part in enumerate((".run-head", ".cause", ".vitals", ".heat-card"), 1):
        expect(page.locator(part)).to_have_attribute("data-mark", str(number))
    page.keyboard.press("Escape")
    expect(tour(page)).to_have_count(0)
    expect(page.locator("[data-mark]")).to_have_count(0)
    # Who wants it again finds it beside the keys.
    page.keyboard.press("?")
    page.get_by_role("button", name="Show the tour").click()
    expect(tour(page)).to_be_visible()


def test_another_run_has_no_tour(visit):
    page = visit("?run=healthy")
    expect(page.locator(".heat-surface")).to_be_visible()
    expect(tour(page)).to_have_count(0)


def test_every_alert_leads_to_its_section_of_the_gallery(visit_below, demo):
    page = visit_below("?run=demo&screen=alerts")
    rule = page.locator(".explanation .facts a").first
    name = rule.inner_text()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="About this fault").click()
    gallery = opened.value
    expect(gallery.locator(f"section#{name}")).to_be_in_viewport()
    expect(gallery.locator(f"section#{name}")).to_contain_text("Why it matters")
    # The faults that show it have a picture.
    example = gallery.locator(f"section#{name}").get_by_role("link").first
    example.click()
    picture = gallery.locator("section:target img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth > 100)")
    page.get_by_role("button", name="Show", exact=True).click()
    rules = page.get_by_role("region", name="Alerts").locator("tbody tr td:nth-child(3) a")
    for address in rules.evaluate_all("links => links.map(link => link.getAttribute('href'))"):
        assert address.startswith("gallery#")


def test_the_gallery_has_a_section_for_every_rule(browser, tmp_path):
    with serving(tmp_path) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("gallery")
        found = page.locator("section").evaluate_all("sections => sections.map(section => section.id)")
        assert {known.name for known in RULES} <= set(found)
        assert len(found) == len(set(found))
        visitor.leave()
