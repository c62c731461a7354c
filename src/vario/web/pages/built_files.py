"""The frontend's built files: created when the wheel is built, or by `make page` in a clone."""

from __future__ import annotations

import re
from pathlib import Path

BUILT = Path(__file__).parents[1] / "built"


_STYLE = re.compile(r'<link rel="stylesheet"[^>]*href="\./(assets/[\w.-]+\.css)"')


def style_sheet() -> str | None:
    """Return the address of the dashboard's style sheet, for pages beside it; None if it is not built."""
    index = BUILT / "index.html"
    found = _STYLE.search(index.read_text(encoding="utf8")) if index.is_file() else None
    return None if found is None else found[1]


def why_missing() -> str:
    """Return why there are none, and what to do about it."""
    told = BUILT / "missing.txt"
    if told.is_file():
        return told.read_text(encoding="utf8").strip()
    return "This is a clone without a built frontend. Run `make page`, which needs Node 20.19 or newer."
