"""Run the commands of docs/find-a-nan.md, insert their output, and draw the picture of the page.

python tools/make_tutorial.py

Each `sh` block followed by a `text` block is run in one folder, in order; its stdout becomes the text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "find-a-nan.md"
SCRIPT = re.compile(r"^```py\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(?P<commands>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?", flags=re.M | re.S)
SERVING = "vario serve"


def run_page(text: str, folder: Path) -> str:
    """Return the page with the output of its commands, run in a folder."""
    script = SCRIPT.search(text)
    assert script is not None
    (folder / "train.py").write_text(script[1], encoding="utf8")
    commands = folder.parent / "commands"
    commands.mkdir(exist_ok=True)
    for name, words in (("vario", '-m vario "$@"'), ("python", '"$@"')):
        (commands / name).write_text(f"#!/bin/sh\nexec {sys.executable} {words}\n", encoding="utf8")
        (commands / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "COLUMNS": "84", "OMP_NUM_THREADS": "1"}

    def run(block: re.Match[str]) -> str:
        if SERVING in block["commands"]:
            return block[0]
        done = subprocess.run(
            ["bash", "-c", block["commands"]], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{block['commands']}{done.stderr}")
        if block["printed"] is None:
            return block[0]
        printed = "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())
        return f"```sh\n{block['commands']}```\n\n```text\n{printed}\n```\n"

    return BLOCK.sub(run, text)


def draw(folder: Path) -> None:
    """Draw the dashboard of the broken run."""
    from make_screenshots import serving, take
    from playwright.sync_api import sync_playwright

    with serving(folder / "vario_runs") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        query = "?run=broken&quantity=activation&statistic=rms"
        picture = take(browser, address + query, 1280, 795, False, ".heat-surface")
        (DOCS / "images" / "find-a-nan.png").write_bytes(picture)
        browser.close()


def main() -> None:
    """Write the page and its picture."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tutorial"
        folder.mkdir()
        PAGE.write_text(run_page(PAGE.read_text(encoding="utf8"), folder), encoding="utf8")
        draw(folder)


if __name__ == "__main__":
    main()
