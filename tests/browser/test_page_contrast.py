"""What everybody needs to read and use the page: contrast of text (WCAG AA) and names of controls, on every screen."""

import pytest
from browsing import Visitor
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

CHECK = """() => {
  const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const pixel = (color) => {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = color;
    brush.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = brush.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement)
      layers.push(pixel(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = (color) => {
    const [red, green, blue] = color.map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const problems = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("svg, [hidden], .only-read, .skip, .runs-acts, :disabled, option"))
      continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden" || !element.getClientRects().length) continue;
    const below = ground(element);
    const pair = [light(over(pixel(style.color), below)), light(below)].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (isLarge ? 3 : 4.5))
      problems.push(`${node.textContent.trim().slice(0, 30)}: ${contrast.toFixed(2)} (${element.className})`);
  }
  for (const control of document.querySelectorAll("button, a[href], input, select, textarea, [role=img]")) {
    const labels = control.labels ? [...control.labels].map((label) => label.textContent).join("") : "";
    const name = control.getAttribute("aria-label") || control.textContent || labels || control.title;
    if (!name.trim()) problems.push(`no name: ${control.outerHTML.slice(0, 80)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`two elements are #${id}`);
  return [...new Set(problems)];
}"""
"""What a person with weak eyes, or with a screen reader, would stumble over."""

BEST = "lr0.1-w4-s0"
PAGES = [
    ("", ".runs-row"),
    ("?columns=state&columns=lr&columns=val_loss:best&tint=lr&by=width", ".is-group"),
    ("?list=charts", ".u-over"),
    ("?list=effects", ".picture circle"),
    (f"?run={BEST}", ".heat-surface"),
    (f"?run={BEST}&screen=series", ".u-over"),
    (f"?run={BEST}&screen=alerts", "main h1, main h2, main h3"),
    (f"?run={BEST}&screen=compare&runs=lr0.3-w4-s0", ".chart"),
    (f"?run={BEST}&screen=model", ".model-row"),
    (f"?run={BEST}&screen=settings", ".facts"),
]


def problems_of_pages(page, address, look, pages=PAGES):
    """What `look` finds on every screen."""
    problems = []
    for query, ready in pages:
        page.goto(address + query)
        expect(page.locator(ready).first).to_be_visible()
        problems += [f"{query}: {found}" for found in look(page)]
    return problems


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_and_controls_have_names(browser, writable_sweep, dark):
    visitor = Visitor(browser, f"http://127.0.0.1:{writable_sweep.port}/")
    problems = problems_of_pages(visitor(dark=dark), visitor.address, lambda page: page.evaluate(CHECK))
    assert not problems, "\n".join(problems)
    visitor.leave()


def test_keys_work_after_a_click_on_a_checkbox_and_enter_leaves_the_search(browser, writable_sweep):
    visitor = Visitor(browser, f"http://127.0.0.1:{writable_sweep.port}/")
    page = visitor("?sort=lr")
    page.get_by_role("rowgroup").get_by_role("checkbox").first.click()
    before = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("t")
    expect(page.locator("html")).not_to_have_attribute("data-theme", before or "")
    search = page.get_by_role("searchbox", name="Search runs")
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("w16")
    page.keyboard.press("Enter")
    expect(search).not_to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(".runs-row.is-current")).to_contain_text("w16")
    visitor.leave()
