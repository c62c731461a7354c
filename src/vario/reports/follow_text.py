"""The output of `vario follow`, one line per event."""

from __future__ import annotations

from vario.core.text import duration
from vario.rules.api.alerts import Incident
from vario.rules.api.wording import in_one_line
from vario.runs.live.run_watch import Trouble


def incident_line(incident: Incident) -> str:
    """Format an incident and what to do next in one line."""
    return f"{incident.severity}: {in_one_line(incident)} Next: {incident.advice}"


def trouble_line(trouble: Trouble) -> str:
    """Format a rank that stalled, died, crashed or continues."""
    rank = f"rank {trouble.rank}" + (f" on {trouble.host}" if trouble.host else "")
    last = "no step yet" if trouble.last_step is None else f"its last step is {trouble.last_step}"
    if trouble.kind == "stalled":
        still = "" if trouble.seconds is None else f" for {duration(trouble.seconds)}"
        usual = "" if trouble.usual_seconds is None else f", usually {duration(trouble.usual_seconds)} per step"
        return f"{trouble.severity}: {rank} has not completed a step{still}{usual}; {last}"
    if trouble.kind == "well":
        return f"{trouble.severity}: {rank} continues, at step {trouble.last_step}"
    if trouble.victim_of is not None:
        return f"{trouble.severity}: {rank} {trouble.kind}, taken down by rank {trouble.victim_of}; {last}"
    because = f": {trouble.error}" if trouble.error else ""
    return f"{trouble.severity}: {rank} {trouble.kind}{because}; {last}"
