"""Which rank of a job failed first, and which ranks it took down with it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from vario.runs.files.status import RankState

FAILED = ("crashed", "died", "stalled")
PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|closed by peer|remote (worker|process|peer|error|host)"
    r"|ncclRemoteError|communicator was aborted|failed to (recv|read|send)|SIGTERM|SignalException",
    re.IGNORECASE,
)
"""What a rank raises when a peer is gone, or when its launcher stops it because another rank failed."""


def with_victims(states: Sequence[RankState]) -> list[RankState]:
    """Return the ranks with `victim_of` set on those that the first failure took down.

    A launcher kills the other ranks when one fails, and collectives raise when a peer is gone. Both look like
    independent failures.
    """
    first = first_failure(states)
    return [_marked(state, first) for state in states]


def in_order_of_failure(states: Sequence[RankState]) -> list[RankState]:
    """Return the ranks that failed or stalled: the first to fail, other independent failures, then the victims."""
    first = first_failure(states)
    failed = [state for state in with_victims(states) if state.state in FAILED or state.victim_of is not None]
    return sorted(failed, key=lambda state: _place(state, first))


def what_failed(states: Sequence[RankState]) -> str | None:
    """Return the error a job ended with: the one of the first rank to fail, or a description if it left none."""
    for state in in_order_of_failure(states):
        if state.error:
            return state.error
        if state.state == "died" and len(states) == 1:
            return "the process ended without an error message: by a signal such as SIGTERM or SIGKILL, or by os._exit"
        if state.state == "died" and not any(one.state == "interrupted" for one in states):
            return f"rank {state.rank} died without an error message"
    return None


def first_failure(states: Sequence[RankState]) -> RankState | None:
    """Return the rank whose failure ended the job; None if nothing failed, or if the first cannot be determined."""
    own = [state for state in states if state.state == "crashed" and not _lost_its_peer(state)]
    if own:
        return min(own, key=lambda state: (float("inf") if state.ended is None else state.ended, state.rank))
    died = [state for state in states if state.state == "died"]
    if any(state.state == "interrupted" for state in states):
        return None  # after Ctrl-C the launcher killed those that did not end by themselves
    # If several died without a message, one was killed and the others were stopped after it: no file says which.
    return died[0] if len(died) == 1 else None


def _lost_its_peer(state: RankState) -> bool:
    return state.error is not None and PEER_LOST.search(state.error) is not None


def _marked(state: RankState, first: RankState | None) -> RankState:
    if first is None or state.rank == first.rank:
        return state
    was_stopped = state.state in ("died", "stalled", "interrupted")
    is_victim = was_stopped or (state.state == "crashed" and _lost_its_peer(state))
    return dataclasses.replace(state, victim_of=first.rank) if is_victim else state


def _place(state: RankState, first: RankState | None) -> tuple[bool, bool, float, int]:
    is_first = first is not None and state.rank == first.rank
    when = state.ended if state.state == "crashed" and state.ended is not None else 0.0
    return not is_first, state.victim_of is not None or _lost_its_peer(state), when, state.rank
