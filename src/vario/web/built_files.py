"""Where the front end's built files lie: packed into the wheel, made by `npm run build` in a clone."""

from __future__ import annotations

from pathlib import Path

BUILT = Path(__file__).parent / "built"
