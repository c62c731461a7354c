"""Watches a run: runs rules over its ranks as their folders grow, and detects ranks that stall or die."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vario.core.process import ending
from vario.core.run_format import INCIDENTS
from vario.core.text import reason
from vario.rules import Chosen
from vario.rules.api.alerts import Alert, Incident, Severity
from vario.rules.api.incidents import Incidents
from vario.rules.api.step_view import Step
from vario.runs.files.rank_failures import in_order_of_failure
from vario.runs.files.status import RankState
from vario.runs.findings.alert_lines import read_lines
from vario.runs.findings.replay import RunDetector, facts_of, warn_of_failure
from vario.runs.live.rank_follower import RankFollower
from vario.runs.reader import RunReader

log = logging.getLogger("vario")

STALL_TIMES = 10.0
STALL_SECONDS = 60.0
OVER = (*ending.OVER, "died", "left")
"""States of a rank after which no more steps follow."""


@dataclass(frozen=True)
class Trouble:
    """A rank that does not respond, or is gone."""

    rank: int
    host: str
    kind: str
    """stalled, died, crashed, or well: it continues after a stall."""
    last_step: int | None
    seconds: float | None = None
    """How long it has not completed a step."""
    usual_seconds: float | None = None
    error: str | None = None
    victim_of: int | None = None
    """The rank whose failure took this one down."""

    @property
    def severity(self) -> Severity:
        """Its severity."""
        return "note" if self.kind == "well" or self.victim_of is not None else "page"


@dataclass(frozen=True)
class News:
    """The result of one check of a run."""

    alerts: Sequence[Alert] = ()
    incidents: Sequence[Incident] = ()
    told_by_ranks: Sequence[Incident] = ()
    """Incidents that the ranks found themselves, one per root cause."""
    troubles: Sequence[Trouble] = ()
    is_over: bool = False
    num_steps: int = 0
    """Steps checked so far."""
    revised: Sequence[Incident] = ()
    """Earlier incidents that have been revised."""


@dataclass
class _Pulse:
    """When a rank completed its steps, by the watcher's clock."""

    last_step: int | None = None
    seen_at: float | None = None
    is_stalled: bool = False


class RunWatch:
    """Checks one run repeatedly; over all steps it finds what `check` finds later."""

    def __init__(self, path: Path, rules: Sequence[Chosen], stall_seconds: float = STALL_SECONDS) -> None:
        self.path = path
        self._rules = list(rules)
        self._stall_seconds = stall_seconds
        self._pulses: dict[int, _Pulse] = {}
        self._told_states: dict[int, str] = {}
        self._told: set[tuple[object, ...]] = set()
        self._first_look: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Start from the first step: initially, and whenever the job was restarted and steps were discarded."""
        self.run = RunReader(self.path)
        self.sessions = self.run.sessions
        self._detector = RunDetector(self._rules, self.run.world_size, self._alike, warn_of_failure)
        self._incidents = Incidents({found.rule.name: found.rule for found in self._rules})
        self._followers: dict[int, RankFollower] = {}
        self._waiting: dict[int, deque[Step]] = {}
        self._read_lines: dict[Path, int] = {}
        self._num_steps = 0

    def _alike(self, target: str, rank: int) -> Sequence[int]:
        return self.run.layout.alike(target, rank)

    def look(self, now: float) -> News:
        """Read what is new since the last call; `now` in Unix seconds."""
        self._first_look = now if self._first_look is None else self._first_look
        if len(self.run.sessions) != len(self.sessions):
            self._begin()
        # Checked before the rows are read: a rank that has ended by then has written everything.
        states = {found.rank: found for found in self.run.noted_rank_states}
        is_over = self.run.state not in ("running", "stalled")
        for rank in self.run.ranks:
            if rank in states:
                ended = is_over or states[rank].state in OVER
                self._waiting.setdefault(rank, deque()).extend(self._new_steps(rank, ended))
        alerts: list[Alert] = []
        incidents: list[Incident] = []
        revised: list[Incident] = []
        for number, steps in self._side_by_side(states, is_over, now):
            found = self._incidents.add(number, self._detector.see(number, steps))
            self._num_steps += 1
            alerts += found.alerts
            incidents += found.told
            revised += found.revised
        if is_over:
            incidents += self._incidents.flush()
        troubles = [*self._gone(states), *self._stalls(states, now, is_over)]
        return News(alerts, incidents, list(self._told_by_ranks()), troubles, is_over, self._num_steps, revised)

    def flush(self) -> list[Incident]:
        """Return the incident in progress, without waiting for more."""
        return self._incidents.flush()

    def _new_steps(self, rank: int, ended: bool) -> Iterator[Step]:
        if rank not in self._followers:
            facts = facts_of(self.run, rank)
            order = self.run.config.get("quantities") or ()
            folder = self.path / f"rank{rank}"
            self._followers[rank] = RankFollower(folder, order, facts, self._detector.memory(rank))
        return self._followers[rank].new_steps(self.sessions, ended)

    def _side_by_side(
        self, states: dict[int, RankState], is_over: bool, now: float
    ) -> Iterator[tuple[int, dict[int, Step]]]:
        """Align the same step of all ranks, as soon as all active ranks have completed it."""
        expected = set(self.run.config.get("ranks") or range(self.run.world_size))
        missing = expected - states.keys()
        assert self._first_look is not None
        if missing and not is_over and now - self._first_look < self._stall_seconds:
            return
        going = {rank for rank, found in states.items() if found.state not in OVER and not is_over}
        while any(self._waiting.values()):
            if any(not self._waiting.get(rank) for rank in going):
                return
            number = min(queue[0].number for queue in self._waiting.values() if queue)
            yield (
                number,
                {
                    rank: queue.popleft()
                    for rank, queue in sorted(self._waiting.items())
                    if queue and queue[0].number == number
                },
            )

    def _gone(self, states: dict[int, RankState]) -> Iterator[Trouble]:
        for found in in_order_of_failure(list(states.values())):
            rank = found.rank
            if found.state in ("died", "crashed") and self._told_states.get(rank) != found.state:
                step = self._last_step(rank, found)
                yield Trouble(rank, found.host, found.state, step, error=found.error, victim_of=found.victim_of)
        self._told_states.update((rank, found.state) for rank, found in states.items())

    def _stalls(self, states: dict[int, RankState], now: float, is_over: bool) -> Iterator[Trouble]:
        for rank, follower in self._followers.items():
            if rank not in states:
                continue
            pulse = self._pulses.setdefault(rank, _Pulse())
            if follower.newest is not None and follower.newest[0] != pulse.last_step:
                step, ended = follower.newest
                # Clocks of two machines may differ: rely on theirs only at the first check.
                pulse.seen_at = min(now, ended) if pulse.seen_at is None and ended > 0 else now
                pulse.last_step = step
                if pulse.is_stalled:
                    pulse.is_stalled = False
                    yield Trouble(rank, states[rank].host, "well", step)
            if pulse.seen_at is None or is_over or states[rank].state in OVER or pulse.is_stalled:
                continue
            times = follower.step_seconds
            usual = statistics.median(times) if times else 0.0
            still = now - pulse.seen_at
            if still > max(STALL_TIMES * usual, self._stall_seconds):
                pulse.is_stalled = True
                yield Trouble(rank, states[rank].host, "stalled", pulse.last_step, still, usual or None)

    def _last_step(self, rank: int, found: RankState) -> int | None:
        follower = self._followers.get(rank)
        return found.last_step if follower is None or follower.newest is None else follower.newest[0]

    def _told_by_ranks(self) -> Iterator[Incident]:
        for rank in self.run.ranks:
            path = self.path / f"rank{rank}" / INCIDENTS
            lines = list(read_lines(path))
            for plain in lines[self._read_lines.get(path, 0) :]:
                try:
                    incident = Incident.from_json(plain)
                except (TypeError, ValueError, KeyError, OverflowError) as error:
                    log.warning("%s: skipped a line: %s", path, reason(error))
                    continue
                # A revised incident is stored again, and reported again only if it is more urgent.
                lead = (incident.lead.rule, incident.lead.step, incident.lead.target)
                told = (incident.id, incident.severity) if incident.id else lead
                if told not in self._told:
                    self._told.add(told)
                    yield incident
            self._read_lines[path] = len(lines)
