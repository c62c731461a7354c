"""Draw docs/images/dashboard-*.png: the dashboard over runs that this script trains, in a real browser.

Takes some minutes: it first trains the runs of picture_runs.py. `--runs FOLDER` reuses those of an earlier call, or
keeps them there.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import picture_runs
import uvicorn
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from vario.web.app import make_app
from vario.web.server.listening import listen

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MOST_BYTES = 200_000
FOUND = "run=broken"
CURVES = "&".join(
    f"series=activation|{name}|rms" for name in ("blocks.0:output", "blocks.1:output", "blocks.2:output", "norm:output")
)

# name, address, width and height of the window, dark, what to wait for
PICTURES = (
    ("runs", "", 1280, 400, False, ".runs-row:nth-child(4) .spark path"),
    ("home", f"?{FOUND}&quantity=gradient", 1280, 1310, False, ".heat-surface"),
    ("home-dark", f"?{FOUND}&quantity=activation&statistic=rms&colour=change", 1280, 1180, True, ".heat-surface"),
    ("series", f"?{FOUND}&screen=series&series=scalar|loss|value&{CURVES}&log=1", 1280, 560, False, ".u-over"),
    ("changes", f"?{FOUND}&screen=changes&lately=100", 1280, 760, False, ".change"),
    ("alerts", f"?{FOUND}&screen=alerts", 1280, 1040, False, ".explanation"),
    ("ranks", "?run=slow-rank&screen=ranks", 1280, 900, True, ".u-over"),
    (
        "compare",
        "?run=whole&screen=compare&runs=broken&quantity=activation",
        1280,
        1180,
        False,
        ".chart + .chart",
    ),
    ("model", "?run=whole&screen=model", 1280, 860, True, ".model-row"),
    ("phone", f"?{FOUND}&quantity=gradient", 390, 844, True, ".heat-surface"),
)


def main() -> None:
    """Train missing runs, then draw every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="folder with the runs of an earlier call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.runs or Path(scratch) / "vario_runs"
        picture_runs.train_all(folder)
        with picture_runs.training_now(folder), serving(folder) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, query, width, height, is_dark, ready in PICTURES:
                picture = take(browser, address + query, width, height, is_dark, ready)
                path = IMAGES / f"dashboard-{name}.png"
                path.write_bytes(picture)
                sys.stdout.write(f"{path.name}: {len(picture) / 1000:.0f} kB\n")
            browser.close()


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the dashboard over a folder for this process."""
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(make_app(folder), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening.socket]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.port}/"
    finally:
        server.should_exit = True
        thread.join()
        listening.socket.close()


def take(browser: Browser, address: str, width: int, height: int, is_dark: bool, ready: str) -> bytes:
    """Take a screenshot of one page when it is fully loaded."""
    page: Page = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if is_dark else "light",
        device_scale_factor=2 if width < 640 else 1,
    )
    # A page of a run that has ended falls silent; the list of runs keeps its stream open.
    page.goto(address, wait_until="load")
    page.locator(ready).first.wait_for(timeout=60_000)
    page.wait_for_function("() => !document.querySelector('.loading, .is-stale')", timeout=60_000)
    if "run=" in address:
        page.wait_for_load_state("networkidle")
    shot = page.screenshot()
    page.close()
    return smaller(shot)


def smaller(shot: bytes) -> bytes:
    """The picture as a file under the limit."""
    with Image.open(io.BytesIO(shot)) as opened:
        picture = opened.convert("RGB")
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    if written.tell() > MOST_BYTES:
        written = io.BytesIO()
        picture.quantize(palette=palette_of(picture), dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


def palette_of(picture: Image.Image) -> Image.Image:
    """256 colours: those seen most, so that surfaces stay what they are, and a selection that keeps rare ones."""
    colors: Any = picture.getcolors(picture.width * picture.height)
    often = [part for _, color in sorted(colors, reverse=True)[:24] for part in color]
    others = picture.quantize(232, method=Image.Quantize.FASTOCTREE).getpalette() or []
    holder = Image.new("P", (1, 1))
    holder.putpalette((often + others)[: 3 * 256])
    return holder


if __name__ == "__main__":
    main()
