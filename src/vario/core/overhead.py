"""The overhead budget: what watching may add to the time of a step."""

from __future__ import annotations

import os

from vario.core.errors import ConfigError

OVERHEAD = "VARIO_OVERHEAD"
"""The environment variable with the overhead budget of runs that set none."""


def default_overhead() -> str | float:
    """Return the budget of a run that sets none."""
    return os.environ.get(OVERHEAD) or 0.02


def overhead_share(overhead: object) -> float | None:
    """Return the share of the step time that an overhead budget allows; None without a budget."""
    if overhead is None or overhead == "off":
        return None
    number: object = overhead
    if isinstance(overhead, str):
        text = overhead.strip()
        try:
            number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number <= 1:
        raise ConfigError(
            f"overhead: expected a share such as 0.02, a percentage such as '2%' or 'off', got {overhead!r}"
        )
    return float(number)
