"""Where the front end's built files lie: made while the wheel is built, or by `make page` in a clone."""

from __future__ import annotations

from pathlib import Path

BUILT = Path(__file__).parent / "built"


def why_missing() -> str:
    """Why there are none, and what to do about it."""
    told = BUILT / "missing.txt"
    if told.is_file():
        return told.read_text(encoding="utf8").strip()
    return "This is a clone whose page was never built. Build it, which needs Node 20.19 or newer: make page"
