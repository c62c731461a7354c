"""A browser as a person uses it: pages that are opened, looked at and listened to."""

import shutil
import time
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Error, expect, sync_playwright

BUILT = Path(__file__).parents[2] / "src" / "vario" / "web" / "built"
NAMES = ("chromium", "chromium-browser", "google-chrome")
MARKUP_NAME = "<img src=x onerror=alert(1)>"
"""A run's name as an attacker would like it; a slash cannot be in one."""
PATIENCE_MS = 60_000
"""How long a page may take on a busy machine."""
START_MS = 90_000
"""How long the browser itself may take there, each of three times."""

IS_PINK = """canvas => {
  const { width, height } = canvas;
  const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
  let first = width, number = 0;
  for (let at = 0; at < pixels.length; at += 4)
    if (pixels[at] === 255 && pixels[at + 1] === 0 && pixels[at + 2] === 140) {
      number++;
      first = Math.min(first, (at / 4) % width);
    }
  return { first: first / width, number };
}"""
"""How many pixels of a canvas say NaN, and how far from the left the first of them is."""


@contextmanager
def open_browser():
    """Chromium, as it is installed here."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, "the browser tests need Chromium: apt-get install chromium (or google-chrome)"
    assert (BUILT / "index.html").exists(), "the dashboard is not built: cd frontend && npm ci && npm run build"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = _start(playwright.chromium, path)
        yield browser
        _free.clear()
        browser.close()


def _start(chromium, path):
    """On a busy machine Chromium now and then does not come up: that is no fault of what is tested."""
    for is_last in (False, False, True):
        try:
            return chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"], timeout=START_MS)
        except Error:
            if is_last:
                raise
    raise AssertionError


_free = []
"""Pages that nobody looks at: a new one takes Chromium longer than most tests take."""


class Visitor:
    """Opens pages and keeps what they complain of."""

    def __init__(self, browser, address):
        self._browser = browser
        self._pages, self._contexts = [], []
        self.address = address
        self.complaints = []
        self._heard = {
            "pageerror": lambda error: self.complaints.append(str(error)),
            "console": lambda said: said.type in ("error", "warning") and self.complaints.append(said.text),
            "dialog": lambda dialog: self.complaints.append(f"a dialog: {dialog.message}") or dialog.dismiss(),
        }

    def __call__(self, query="", width=1280, height=900, dark=False, touch=False, script=""):
        page = self._new_page(has_touch=touch) if touch or script else self._free_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        for event, hear in self._heard.items():
            page.on(event, hear)
        if script:
            page.add_init_script(script)
        page.goto(self.address + query)
        return page

    def _free_page(self):
        page = _free.pop() if _free else self._new_page()
        self._pages.append(page)
        return page

    def _new_page(self, **options):
        context = self._browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        if options:
            self._contexts.append(context)
        return context.new_page()

    def leave(self):
        for context in self._contexts:
            context.close()
        for page in self._pages:
            self._return(page)
        assert not self.complaints, self.complaints

    def _return(self, page):
        """Leave a page as a new one is: nothing stored, nothing replaced, no pointer over it."""
        try:
            for event, hear in self._heard.items():
                page.remove_listener(event, hear)
            page.unroute_all()
            page.mouse.move(-1, -1)
            page.evaluate("localStorage.clear(); sessionStorage.clear()")
            page.goto("about:blank")
            page.context.clear_cookies()
        except Error:  # it was closed, or shows what has no storage
            page.context.close()
        else:
            _free.append(page)


def box_of(locator):
    """Where something is, once it has come to rest: a page moves what it has while it learns how wide it is."""
    expect(locator).to_be_visible()
    before, until = None, time.monotonic() + PATIENCE_MS / 1e3
    while (found := locator.bounding_box()) is None or found != before:
        assert time.monotonic() < until, f"{locator} does not come to rest"
        before = found
        locator.page.wait_for_timeout(50)
    return found


def asked(page, part):
    """A list that grows with each request whose address has `part` in it."""
    found = []
    page.on("request", lambda request: part in request.url and found.append(request.url))
    return found
