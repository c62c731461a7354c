"""The output of `vario follow`, one line per event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vario.core.text import duration
from vario.reports.ranks_text import RANKS_NAMED, rank_ranges
from vario.rules.api.alerts import Incident
from vario.rules.api.wording import in_one_line
from vario.runs.live.run_watch import Trouble


def incident_line(incident: Incident) -> str:
    """Format an incident and what to do next in one line."""
    return f"{incident.severity}: {in_one_line(incident)} Next: {incident.advice}"


def trouble_lines(troubles: Sequence[Trouble]) -> Iterator[str]:
    """Format ranks that stalled, died, crashed or continue: many of a kind in one line."""
    kinds: dict[object, list[Trouble]] = {}
    for each in troubles:
        kinds.setdefault((each.kind, each.severity, each.victim_of), []).append(each)
    for found in kinds.values():
        if len(found) > RANKS_NAMED:
            yield _together(found)
        else:
            yield from map(trouble_line, found)


def _together(troubles: Sequence[Trouble]) -> str:
    """Format ranks to which the same has happened, and which of them are furthest behind."""
    first = troubles[0]
    ranks = f"{len(troubles)} ranks ({rank_ranges(sorted(each.rank for each in troubles))})"
    steps = {each.rank: -1 if each.last_step is None else each.last_step for each in troubles}
    least, newest = min(steps.values()), max(steps.values())
    last = "no step yet" if newest < 0 else f"their last step is {newest}"
    behind = sorted(rank for rank, step in steps.items() if step == least)
    if least < newest:
        place = "before their first step" if least < 0 else f"at step {least}"
        last = (
            f"rank{'s' if len(behind) > 1 else ''} {rank_ranges(behind)} furthest behind, {place}; others at {newest}"
        )
    if first.kind == "stalled":
        still = max(each.seconds or 0.0 for each in troubles)
        usual = max(each.usual_seconds or 0.0 for each in troubles)
        slow = f", usually {duration(usual)} per step" if usual else ""
        return f"{first.severity}: {ranks} have not completed a step for {duration(still)}{slow}; {last}"
    if first.kind == "well":
        return f"{first.severity}: {ranks} continue; {last}"
    by = "" if first.victim_of is None else f", taken down by rank {first.victim_of}"
    because = next((f": {each.error}" for each in troubles if each.error), "")
    return f"{first.severity}: {ranks} {first.kind}{by}{because}; {last}"


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
