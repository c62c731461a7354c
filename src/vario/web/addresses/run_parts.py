"""Parts of the overview of one run."""

from __future__ import annotations

from vario.runs.files.rank_failures import first_failure
from vario.runs.files.status import read_ranks
from vario.runs.run import Run
from vario.runs.views.speed.overhead import intervals
from vario.web import bodies


def sessions_of(run: Run) -> list[bodies.Session]:
    """Return first step and start time of each session."""
    return [{"first_step": found["first_step"], "started": found.get("started")} for found in run.sessions]


def host_of(run: Run) -> str:
    """Return where the run is, or was; empty if no rank says."""
    return next((str(content.get("host") or "") for content in read_ranks(run.path)), "")


def failed_rank_of(run: Run) -> int | None:
    """With several ranks, the one that failed first."""
    first = first_failure(run.noted_rank_states) if run.world_size > 1 else None
    return None if first is None else first.rank


def quantities_of(run: Run) -> list[bodies.Quantity]:
    """Return what was recorded, and how often."""
    if not run.ranks:
        return []
    every = intervals(run, run.ranks[0])
    statistics = run.statistics
    return [
        {
            "name": name,
            "num_targets": len(run.targets(name)),
            "statistics": ["value"] if name == "scalar" else statistics,
            "default_statistic": "value" if name == "scalar" else run.usual_statistic,
            "steps": len(run.steps(name, _having(run, name))),
            "every": every.get(name, 1),
        }
        for name in run.quantities("all")
    ]


def _having(run: Run, quantity: str) -> int:
    return next(rank for rank in run.ranks if quantity in run.quantities(rank))
