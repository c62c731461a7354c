"""Builds what a package contains besides Python, so that `pip install .` in a clone has it: dashboard and C library.

Without Node the package is still built and works, and the page says why it is missing. An editable install does not
build the page: run `make page` when the frontend changes. For the library see `build_native.py`.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WHY_MISSING = "missing.txt"
"""Beside the built files: why there are none. `vario serve` and `vario export --html` show it."""


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs npm before the files are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page unless it exists and is newer than its sources; the same for the library in a wheel."""
        if self.target_name == "wheel":
            self._build_native(build_data)
        if version == "editable":
            return
        root = Path(self.root)
        built = root / "src" / "vario" / "web" / "built"
        if is_current(root / "frontend", built):
            return
        problem = build(root / "frontend")
        if problem is None:
            (built / WHY_MISSING).unlink(missing_ok=True)
            return
        if not (built / "index.html").exists():
            built.mkdir(parents=True, exist_ok=True)
            (built / WHY_MISSING).write_text(problem + "\n", encoding="utf8")
        self.app.display_warning(f"The dashboard is not built. {problem}")

    def _build_native(self, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        native = runpy.run_path(str(root / "tools" / "build_native.py"))
        problem = native["build"](root)
        if problem is None:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        else:
            self.app.display_warning(f"The native library is not built, vario does without it: {problem}")


def is_current(frontend: Path, built: Path) -> bool:
    """Whether the page is newer than its sources; a source archive contains it."""
    pages = [built / "index.html", built / "report.js"]
    if not all(page.exists() for page in pages):
        return False
    oldest = min(page.stat().st_mtime for page in pages)
    return all(path.stat().st_mtime <= oldest for path in sources(frontend))


def sources(frontend: Path) -> list[Path]:
    """The files the page is made from."""
    found: list[Path] = []
    for folder, folders, names in os.walk(frontend):
        folders[:] = [name for name in folders if name not in ("node_modules", ".tests", "tests")]
        found += [Path(folder) / name for name in names if not name.endswith(".md")]
    return found


def build(frontend: Path) -> str | None:
    """Run npm and return what went wrong, and what to do about it."""
    again = "Then run pip again with --force-reinstall."
    npm = shutil.which("npm")
    if npm is None:
        return f"Node (npm) was not found when vario was installed. Install Node 20.19 or newer. {again}"
    steps = [["ci", "--no-audit", "--no-fund"], ["run", "build"]]
    if (frontend / "node_modules").is_symlink():
        del steps[0]  # it is somebody else's, and `npm ci` would empty it
    for words in steps:
        done = subprocess.run([npm, *words], cwd=frontend, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            told = f"`npm {words[0]}` failed when vario was installed: {' '.join(said[-3:])[:500]}"
            return f"{told} Node 20.19 or newer and the npm registry are needed. {again}"
    return None
