"""axe-core, the usual checker of accessibility, finds nothing on any screen, in light and dark colours."""

from pathlib import Path

import pytest
from browsing import Visitor
from playwright.sync_api import expect
from test_page_contrast import problems_of_pages

pytestmark = pytest.mark.slow

AXE = Path(__file__).parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async () => {
  const found = await axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  });
  return found.violations.map(
    ({ id, nodes }) => `${id}: ${nodes.length} (${nodes.slice(0, 3).map(({ html }) => html.slice(0, 99)).join(" | ")})`,
  );
}"""
OPENED = [
    ("?columns=state&columns=val_loss:best", ".runs-row", "Columns", ".chooser"),
    ("", ".runs-row", "Keys", "dialog[open]"),
]
"""Pages on which a button opens something more."""


def problems_of(page):
    """What axe finds; the page's own rules let no script of another origin in, so it is run from outside."""
    page.evaluate(AXE.read_text())
    return page.evaluate(RUN)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(browser, writable_sweep, dark):
    visitor = Visitor(browser, f"http://127.0.0.1:{writable_sweep.port}/")
    page = visitor(dark=dark)
    problems = problems_of_pages(page, visitor.address, problems_of)
    for query, ready, button, opened in OPENED:
        page.goto(visitor.address + query)
        expect(page.locator(ready).first).to_be_visible()
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.locator(opened)).to_be_visible()
        problems += [f"{button}: {found}" for found in problems_of(page)]
    assert not problems, "\n".join(problems)
    visitor.leave()


BROKEN = [
    ("?run=deeper/broken", ".cause"),
    ("?run=deeper/broken&table=1", ".table-box"),
    ("?run=deeper/broken&screen=alerts", ".explanation"),
    ("?run=deeper/broken&screen=changes", ".change"),
    ("?run=deeper/broken&screen=ranks", ".u-over"),
    ("?run=none", ".empty"),
    ("gallery", "section"),
]


def test_axe_finds_nothing_on_a_run_that_broke(browser, server):
    visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
    page = visitor()
    problems = problems_of_pages(page, visitor.address, problems_of, BROKEN)
    assert not problems, "\n".join(problems)
