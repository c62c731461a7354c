"""Runs that a loop makes one after the other, in the list of runs."""

import pytest
from browsing import Visitor
from playwright.sync_api import expect
from web_client import serving

import little_trainings

pytestmark = pytest.mark.slow


def test_a_search_is_one_row_until_it_is_opened(browser, tmp_path):
    for nth in range(3):
        little_trainings.train(tmp_path / f"search{nth}", steps=2)
    little_trainings.train(tmp_path / "alone", steps=2)
    with serving(tmp_path) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor()
        rows = page.get_by_role("rowgroup").get_by_role("row")
        expect(rows).to_have_count(2)
        group = rows.filter(has_text="search2")
        button = group.get_by_role("button", name="3 runs")
        expect(button).to_have_attribute("aria-expanded", "false")
        button.click()
        expect(rows).to_have_count(4)
        expect(rows.nth(3)).to_contain_text("search0")
        group.get_by_role("button", name="3 runs").click()
        expect(rows).to_have_count(2)
        visitor.leave()
