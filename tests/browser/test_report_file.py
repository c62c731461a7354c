"""The report that `vario export --html` writes, opened from disk in a real browser."""

import re

import pytest
from browsing import IS_PINK, Visitor
from playwright.sync_api import expect

from vario.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def report(browser, folder, tmp_path):
    path = tmp_path / "report.html"
    assert main(["export", str(folder / "deeper" / "broken"), "--html", str(path)]) == 0
    visitor = Visitor(browser, path.as_uri())
    yield visitor
    visitor.leave()


def test_a_report_opens_offline_and_shows_the_whole_home(report):
    page = report()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("broken")
    expect(page.get_by_label("Root cause")).to_contain_text("Step 45")
    page.get_by_label("Quantity").select_option("gradient")
    pink = page.locator(".heat-surface canvas").evaluate(IS_PINK)
    assert pink["first"] == pytest.approx(45 / 60, abs=0.02)
    assert len(requests) == 1


def test_a_row_of_a_report_opens_as_a_curve_and_alerts_are_there(report):
    page = report()
    page.get_by_label("Quantity").select_option("gradient")
    page.get_by_label("Filter rows by name").fill("head.weight")
    page.locator(".heat-surface").click(position={"x": 100, "y": 5})
    expect(page).to_have_url(re.compile("#.*screen=series"))
    expect(page.get_by_role("figure")).to_contain_text("head.weight")
    page.get_by_role("link", name=re.compile("Alerts")).click()
    expect(page.locator(".diagnosis")).to_contain_text("At step 45")
    expect(page.get_by_role("link", name="Ranks")).to_have_count(0)
