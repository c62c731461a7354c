"""Plug-ins of other packages, over all registries."""

from __future__ import annotations

from vario.probes import PROBES
from vario.rules import RULES
from vario.sinks import SINKS, PartsOff
from vario.statistics import STATISTICS


def left_out() -> PartsOff:
    """Those that cannot be used, as parts that are off from the first step."""
    return [
        {"part": f"plug-in of {registry.kind}: {broken.name}", "step": 0, "error": broken.error}
        for registry in (PROBES, RULES, STATISTICS, SINKS)
        for broken in registry.broken
    ]
