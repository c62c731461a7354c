"""Comparing printed text with the files in tests/golden."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check(name: str, text: str) -> None:
    """Compare with a golden file, or renew it where VARIO_UPDATE_GOLDEN is set."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("VARIO_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf8")
    assert text == path.read_text(encoding="utf8"), f"{path} differs; see CONTRIBUTING.md"
