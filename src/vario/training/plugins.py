"""Plug-ins from other packages, across all registries."""

from __future__ import annotations

from vario.backends.frameworks import FRAMEWORKS
from vario.probes import PROBES
from vario.rules import RULES
from vario.sinks import SINKS, PartsOff
from vario.statistics import STATISTICS


def left_out() -> PartsOff:
    """Return the plug-ins that cannot be loaded, as parts that are off from the first step."""
    return [
        {"part": f"plug-in of {registry.kind}: {broken.name}", "step": 0, "error": broken.error}
        for registry in (PROBES, RULES, STATISTICS, SINKS, FRAMEWORKS)
        for broken in registry.broken
    ]
