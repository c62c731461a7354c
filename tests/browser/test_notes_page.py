"""Notes on runs from the page: star, name, tags, archive, and the trash that asks twice."""

import shutil

import pytest
from browsing import Visitor
from playwright.sync_api import expect
from web_client import serving

from vario.runs.notes.keeping import trashed

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(sweep, tmp_path):
    for name in ("lr0.1-w4-s0", "lr0.1-w8-s0", "lr0.3-w4-s0"):
        shutil.copytree(sweep / name, tmp_path / name)
    return tmp_path


def row(page, text):
    return page.get_by_role("rowgroup").get_by_role("row").filter(has_text=text)


def test_a_run_is_starred_named_archived_and_deleted(browser, runs):
    with serving(runs, is_writable=True) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?sort=lr")
        star = page.get_by_role("button", name="Star lr0.1-w4-s0")
        star.click()
        expect(star).to_have_attribute("aria-pressed", "true")

        page.get_by_role("button", name="Note on lr0.1-w4-s0").click()
        page.get_by_label("Name", exact=True).fill("the good one")
        page.get_by_label("Tags, separated by commas").fill("good, slow")
        page.get_by_role("button", name="Save").click()
        named = row(page, "the good one")
        expect(named.locator(".tag")).to_have_text(["good", "slow"])
        page.get_by_role("searchbox", name="Search runs").fill("slow")
        expect(page.get_by_role("rowgroup").get_by_role("row")).to_have_count(1)
        page.get_by_role("searchbox", name="Search runs").fill("")

        page.get_by_role("button", name="Note on lr0.3-w4-s0").click()
        page.get_by_role("button", name="Archive", exact=True).click()
        expect(row(page, "lr0.3-w4-s0")).to_have_count(0)
        page.get_by_role("button", name="Archived").click()
        expect(row(page, "lr0.3-w4-s0")).to_be_visible()
        page.get_by_role("button", name="All", exact=True).click()

        page.get_by_role("button", name="Note on lr0.1-w8-s0").click()
        page.get_by_role("button", name="Delete").click()
        confirm = page.get_by_role("button", name="Move to the trash")
        expect(confirm).to_be_disabled()
        page.get_by_label("Type lr0.1-w8-s0 to confirm").fill("lr0.1-w8-s0")
        confirm.click()
        expect(row(page, "lr0.1-w8-s0")).to_have_count(0)
        visitor.leave()
    assert trashed(runs) == ["lr0.1-w8-s0"]


def test_a_read_only_page_offers_none_of_it(browser, runs):
    with serving(runs) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?sort=lr")
        expect(row(page, "lr0.1-w4-s0")).to_be_visible()
        expect(page.get_by_role("button", name="Star lr0.1-w4-s0")).to_have_count(0)
        visitor.leave()
