"""The ranks of a run in one line: how many, in which mesh, on which hosts, and which have failed."""

from __future__ import annotations

from collections.abc import Sequence

from vario.reports.summary import RunSummary
from vario.runs.files.rank_failures import in_order_of_failure
from vario.runs.files.status import RankState

HOSTS_NAMED = 3
RANKS_NAMED = 4


def ranks_text(summary: RunSummary) -> str:
    """Describe how many of all ranks recorded, and where they ran."""
    mesh = " x ".join(f"{name} {size}" for name, size in summary.mesh.items())
    recorded = f"{len(summary.ranks)} of {summary.world_size} recorded" + (f" ({mesh})" if mesh else "")
    hosts: dict[str, list[int]] = {}
    for found in summary.rank_states:
        hosts.setdefault(found.host, []).append(found.rank)
    if len(hosts) > HOSTS_NAMED:
        return f"{recorded}, on {len(hosts)} hosts"
    if len(hosts) > 1:
        return ", ".join([recorded, *(f"{rank_ranges(ranks)} on {host}" for host, ranks in hosts.items())])
    return ", ".join([recorded, *(f"on {host}" for host in hosts)])


def ranks_in_trouble(states: Sequence[RankState]) -> str:
    """Describe the ranks that died, crashed or stalled, the first to fail first; empty if none did."""
    failed = in_order_of_failure(states)
    alone = [state for state in failed if state.victim_of is None] + [s for s in states if s.state == "left"]
    parts = []
    for trouble in dict.fromkeys(state.state for state in alone):
        found = [state for state in alone if state.state == trouble]
        if len(found) > RANKS_NAMED:
            parts.append(f"ranks {rank_ranges(sorted(state.rank for state in found))} {trouble}")
        else:
            parts += [f"rank {state.rank} {trouble} on {state.host}{_after(state.last_step)}" for state in found]
    victims = sorted(state.rank for state in failed if state.victim_of is not None)
    if victims:
        first = failed[0].rank
        parts.append(f"rank {first} took down rank{'s' if len(victims) > 1 else ''} {rank_ranges(victims)}")
    return "; ".join(parts)


def _after(step: int | None) -> str:
    return " before its first step" if step is None else f" after step {step}"


def rank_ranges(ranks: Sequence[int]) -> str:
    """Abbreviate numbers: 0-3, 6."""
    pieces: list[list[int]] = []
    for rank in ranks:
        if pieces and rank == pieces[-1][-1] + 1:
            pieces[-1].append(rank)
        else:
            pieces.append([rank])
    return ", ".join(str(piece[0]) if len(piece) == 1 else f"{piece[0]}-{piece[-1]}" for piece in pieces)
