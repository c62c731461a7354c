"""How long does a user wait? A real `vario serve` and its page in a real Chromium.

Times of the page are those of the browser's own clock: from the start of a navigation, or from the moment another
view is asked for in a page that is open, to the frame after the one in which the canvas had colours on it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from dashboard_server import PATIENCE_SECONDS, Line, Server, timed, vario_server, wait_for
from long_run import Rows, Size, scalars
from vario.core.records import Frame, Scalars, StepRecord
from vario.core.run_header import RunHeader
from vario.sinks.store import Store

HEAT_BAR_MS = 1500.0
SERIES_BAR_MS = 300.0
MEMORY_BAR_MB = 500.0
LIST_BAR_MS = 1000.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HEAT = ".heat-surface canvas"
CURVE = ".chart-box canvas"
SCREENS = ("home", "series", "changes", "alerts", "ranks", "compare", "model", "settings")
NUM_RUNS = 1000

DRAWN = """([selector, address]) => new Promise(done => {
  const start = address ? performance.now() : 0;
  if (address) {
    history.pushState(null, '', address);
    dispatchEvent(new PopStateEvent('popstate'));
  }
  const isDrawn = canvas => {
    if (!canvas || canvas.width < 2) return false;
    const strip = canvas.getContext('2d').getImageData(canvas.width >> 1, 0, 1, canvas.height).data;
    return strip.some((part, at) => at % 4 === 3 && part > 0);
  };
  const look = () => requestAnimationFrame(() =>
    isDrawn(document.querySelector(selector)) ? requestAnimationFrame(() => done(performance.now() - start)) : look());
  look();
})"""
"""Milliseconds until a canvas has colours: since the navigation, or since the page was sent to another view."""

LISTED = """number => new Promise(done => {
  const look = () => requestAnimationFrame(() => {
    const table = document.querySelector('[role=table]');
    const isThere = table && table.getAttribute('aria-rowcount') === number && table.querySelector('.runs-list > *');
    if (isThere) requestAnimationFrame(() => done(performance.now()));
    else look();
  });
  look();
})"""
"""Milliseconds since the navigation until a list of so many runs is shown."""

LOADED = """() => new Promise(done => {
  const isThere = () => document.querySelector('main > *') && !document.querySelector('.loading');
  const look = () => requestAnimationFrame(() => isThere() ? done(performance.now()) : look());
  look();
})"""
"""Milliseconds since the navigation until a screen of a run waits for nothing."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Chromium as it is installed here, awake: its first page is not timed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("the page needs Chromium: apt-get install chromium (or google-chrome)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        yield browser
        browser.close()


def visit(browser: Browser, address: str) -> Page:
    """A page with nothing in its cache, as soon as the first byte is there."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE_SECONDS * 1e3)
    page.goto(address, wait_until="commit")
    return page


def drawn_ms(page: Page, selector: str, address: str = "") -> float:
    """When a canvas was drawn; of another view, where its address is given."""
    return float(page.evaluate(DRAWN, [selector, address]))


def series_address(size: Size, target: int) -> str:
    """The view of one series."""
    return f"?run=.&screen=series&series=gradient%7C{size.names[target]}%7Cnorm"


def time_page(path: Path, size: Size, prepare: Callable[[], None]) -> list[Line]:
    """The home and a series of one long run; `prepare` is called before each server is started."""
    first, second, third = (size.num_targets * part // 7 for part in (2, 3, 5))
    with open_browser() as browser:
        prepare()
        with vario_server(path) as server:
            page = visit(browser, f"{server.url}?run=.")
            heat, then = drawn_ms(page, HEAT), drawn_ms(page, CURVE, series_address(size, first))
            lines = [
                Line("server: process started to first answer", server.up_ms),
                Line("navigation to first heat map, fresh server", heat, bar=HEAT_BAR_MS),
                Line("view of a series asked for to drawn, straight after", then, bar=SERIES_BAR_MS),
            ]
            page = visit(browser, f"{server.url}?run=.")
            lines.append(Line("navigation to heat map, again", drawn_ms(page, HEAT), bar=HEAT_BAR_MS))
            other = drawn_ms(page, CURVE, series_address(size, second))
            lines.append(Line("view of another series asked for to drawn", other, bar=SERIES_BAR_MS))
            lines.append(_peak(server, "two heat maps and two series"))
            slowest, screen = max((_seen_ms(browser, server, screen), screen) for screen in SCREENS)
            lines.append(_peak(server, "and every screen", f"the slowest screen was {screen}: {slowest:,.0f} ms"))
        prepare()
        with vario_server(path) as server:
            for word in ("fresh server", "again"):
                page = visit(browser, server.url + series_address(size, third))
                lines.append(Line(f"navigation to a series by its address, {word}", drawn_ms(page, CURVE)))
    return lines


def _peak(server: Server, after: str, note: str = "") -> Line:
    return Line(f"highest memory of the server: {after}", server.peak_megabytes(), "MB", MEMORY_BAR_MB, note)


def _seen_ms(browser: Browser, server: Server, screen: str) -> float:
    """Milliseconds until a screen has all it asked for."""
    page = visit(browser, f"{server.url}?run=.&screen={screen}")
    found = float(page.evaluate(LOADED))
    page.context.close()
    return found


def write_runs(folder: Path, number: int) -> None:
    """Many runs: one that was really written, and copies of it with names and starts of their own."""
    size, store, started = Size(50, 200), Store(), 1.75e9
    rows, first = Rows(size), folder / "run-0000"
    order = np.arange(size.num_targets, dtype=np.int32)
    parameters = [{"name": name, "shape": [32], "dtype": "float32", "trainable": True} for name in size.names]
    config: dict[str, Any] = {"quantities": ["gradient"]}
    structure = {"modules": [], "parameters": parameters}
    store.open(RunHeader(first, 0, 1, config, {}, "bench", structure, 0, False, started))  # type: ignore[arg-type]
    for step in range(size.num_steps):
        frame = Frame("gradient", step, 0, size.names, order, rows.table(step))
        store.write(StepRecord(step, (frame,), Scalars(step, started + step, scalars(step))))
    store.close("finished", None)
    header = json.loads((first / "run.json").read_text())
    for index in range(1, number):
        copy = shutil.copytree(first, folder / f"run-{index:04}")
        changed = header | {"id": f"{header['id']}-{index}", "started": started + 60 * index}
        (copy / "run.json").write_text(json.dumps(changed))


def time_list(number: int = NUM_RUNS) -> list[Line]:
    """The list of very many runs, by a script and in a page."""
    with tempfile.TemporaryDirectory() as place, open_browser() as browser:
        folder = Path(place)
        write_runs(folder, number)
        with vario_server(folder) as server:
            answer, first = timed(lambda: server.json("api/runs"))
            rows = answer["runs"]
            num_read = sum(row["is_read"] for row in rows)
            _, rest = timed(lambda: wait_for(lambda: _is_all_read(server)))
            _, again = timed(lambda: server.json("api/runs"))
            memory = server.peak_megabytes()
        with vario_server(folder) as server:
            shown = _listed_ms(browser, server, number)
            wait_for(lambda: _is_all_read(server))
            shown_again = _listed_ms(browser, server, number)
        return [
            Line("/api/runs, fresh server", first, bar=LIST_BAR_MS, note=f"{len(rows):,} rows, {num_read:,} with loss"),
            Line("until every row has its loss", first + rest, note="asked again and again; the page gets them sent"),
            Line("/api/runs, again", again, bar=LIST_BAR_MS, note="every row with its loss"),
            Line("navigation to the list on the page, fresh server", shown, bar=LIST_BAR_MS),
            Line("navigation to the list on the page, again", shown_again, bar=LIST_BAR_MS),
            Line("highest memory of the server", memory, "MB", MEMORY_BAR_MB),
        ]


def _listed_ms(browser: Browser, server: Server, number: int) -> float:
    page = visit(browser, server.url)
    found = float(page.evaluate(LISTED, str(number)))
    page.context.close()
    return found


def _is_all_read(server: Server) -> bool:
    return all(row["is_read"] for row in server.json("api/runs")["runs"])
