"""Incidents as text."""

from __future__ import annotations

from pathlib import Path

from vario.rules.api.alerts import Incident


def in_one_line(incident: Incident, run: Path | None = None) -> str:
    """An incident as it is said while training runs."""
    where = f"step {incident.lead.step}" + ("" if incident.rank is None else f", rank {incident.rank}")
    more = len(incident.alerts) - 1
    rest = f" (and {more} more alert{'s' if more > 1 else ''})" if more else ""
    look = "" if run is None else f" More: vario diagnose {run}"
    return f"{where}: {incident.lead.text} [{incident.lead.rule}]{rest}. Likely cause: {incident.cause}.{look}"
