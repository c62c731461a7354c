"""Ranks that are slower than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vario.core.text import duration
from vario.rules import Finding, RanksStep, rule
from vario.rules.api.series_state import Last, Streak, Values

WINDOW = 16
"""The observations in the median, and how many a rank must be slow for."""
NEEDED = 1.5 * WINDOW
OWN = {
    "update_seconds": (1.5, 0.1, 0.0),
    "wait_seconds": (1.5, 0.15, 0.03),
    "forward_seconds": (1.12, 0.06, 0.0),
    "backward_seconds": (1.2, 0.08, 0.0),
}
"""The parts of a step that a rank does alone, in order after the gradient reduction. For each: the ratio to the other
ranks from which it counts, and the share of a step and the seconds the others must lose. What a loop does between steps
varies more than what a model computes, and the monitor's own thread runs there, longest on the leading rank."""
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "alltoall", "barrier")
"""Collectives that no rank leaves before all have arrived: the rank that waits least arrives last."""
MOST_CALLS = 32
LATE_SHARE, LATE_RATIO, LATE_SECONDS = 0.15, 0.5, 0.05
"""A rank is late if all others wait longer, by this share of a step and this many seconds, and it waits less than this
fraction of their time."""


@dataclass(frozen=True)
class _Recent:
    """The last observations of one number on all ranks."""

    name: str
    ranks: list[int]
    steps: Values
    values: Values
    """By rank and observation, oldest first."""

    @property
    def medians(self) -> Values:
        found: Values = np.median(self.values, axis=1)
        return found

    def onset(self, at: int, sign: float) -> tuple[int, bool]:
        """Return the step since which one rank is off, and whether it was off in all of these observations.

        This is the split after which most observations exceed half of the distance, and before which most do not. A
        step may be slow on all ranks, or on one of the others: so it compares both with the others in the same step and
        with their usual time, and takes what separates better.
        """
        others = np.delete(self.values, at, axis=0)
        now, always = np.median(others, axis=0), np.full(WINDOW, np.median(others))
        splits = []
        # The last rank waits as long as ever: only a comparison with the others in the same step shows it.
        for usual in (always, now) if sign > 0 else (now,):
            away = sign * (self.values[at] - usual)
            is_off = away > 0.5 * np.median(away[WINDOW // 2 :])
            weights = np.cumsum(np.where(is_off, 1, -1)[::-1])[::-1]
            first = int(np.flatnonzero(weights == weights.max())[-1])
            splits.append((int(is_off[:first].sum() + (~is_off[first:]).sum()), first))
        first = min(splits)[1]
        return int(self.steps[first]), first == 0


@rule("limit", over="ranks")
def straggler(step: RanksStep, score: float = 0.75, threshold: float = 6.0) -> Iterator[Finding]:
    """A rank that takes longer than the others for its own part of a step, or always arrives last at a collective.

    Why: all ranks wait for the slowest one.

    Cause: a slow host, throttled clocks, or slow data loading

    Points to: hardware 3, data 1, ranks 1

    Next: Check the clocks and other processes on that rank's host, and its data loading: `vario show wait_seconds
    --rank RANK`.
    """
    found = list(_in_own_parts(step, score, threshold))
    slow = {finding.rank for _, finding in found}
    named = step.memory.get("straggler named", Last())
    for rank in sorted(rank for rank in slow if rank is not None):
        # Name one part, and keep naming the same one while it lasts.
        of_rank = [one for one in found if one[1].rank == rank]
        before = named.read("value", (str(rank),))[0]
        part = next((at for at, _ in of_rank if at == before), None)
        at, finding = max(of_rank, key=lambda one: (one[0] == part, one[1].strength))
        named.swap((str(rank),), np.array([float(at)]), step.number)
        yield finding
    yield from (finding for finding in _in_collectives(step) if not _is_slow_by_itself(step, finding.rank))


def _in_own_parts(step: RanksStep, score: float, threshold: float) -> Iterator[tuple[int, Finding]]:
    """Ranks that are slow in a part of a step they do alone, each with the number of that part."""
    spent: Values | None = None
    for part, (name, (ratio, share, least)) in enumerate(OWN.items()):
        ranks = [rank for rank in step.ranks if name in step.steps[rank].scalars]
        if len(ranks) < 2 or len(ranks) < len(step.ranks):
            continue
        recent = _recent(step, name, ranks, [step.steps[rank].scalars[name] for rank in ranks])
        if recent is None or recent.medians.min() <= 0:
            continue
        medians = recent.medians
        spent = medians if spent is None else spent + medians
        slowest = int(np.argmax(medians))
        others = np.delete(medians, slowest)
        usual, most = float(np.median(others)), float(medians[slowest])
        spread = 1.4826 * float(np.median(np.abs(others - usual)))
        is_slow = others.min() / most < score or (len(ranks) > 3 and most - usual > threshold * spread)
        matters = most > max(ratio * usual, usual + least) and not most - usual < share * _step_seconds(step)
        # A rank that only waits, in a collective inside this part, was ahead before: it is not behind.
        is_behind = spent[slowest] - float(np.median(np.delete(spent, slowest))) > 0.5 * (most - usual)
        since = _lasting(step, recent, slowest if is_slow and matters and is_behind else None, 1.0)
        if since is not None:
            text = f"rank {ranks[slowest]} takes {duration(most)} for its part of a step ({name}), the others "
            yield (
                part,
                Finding(
                    text + f"{duration(usual)}, since step {since}",
                    "scalar",
                    name,
                    most,
                    high=usual,
                    scope="rank",
                    rank=ranks[slowest],
                    strength=float(np.log(most / usual)),
                    since=since,
                ),
            )


def _is_slow_by_itself(step: RanksStep, rank: int | None) -> bool:
    """Whether a rank's own part is about to explain why it arrives last."""
    streaks = (step.memory.get(f"straggler {name}", Streak()) for name in OWN)
    return any(streak.read("count", (str(rank),))[0] > 0 for streak in streaks)


def _in_collectives(step: RanksStep) -> Iterator[Finding]:
    """Ranks that all others wait for in a collective, wherever they lose the time."""
    names, seconds = step.table("communication", "max", "seconds")
    if np.isnan(seconds).all():
        names, seconds = step.table("communication", "mean", "seconds")
    found: list[Finding] = []
    for at in [at for at, name in enumerate(names) if name.startswith(SYMMETRIC)][:MOST_CALLS]:
        recent = _recent(step, names[at], step.ranks, seconds[:, at])
        if recent is None:
            continue
        medians = recent.medians
        last = int(np.argmin(medians))
        waited, others = float(medians[last]), float(np.delete(medians, last).min())
        is_last = waited < LATE_RATIO * others and others - waited > max(LATE_SHARE * _step_seconds(step), LATE_SECONDS)
        since = _lasting(step, recent, last if is_last else None, -1.0)
        if since is not None:
            rank = step.ranks[last]
            text = f"rank {rank} arrives last at {names[at]}: the others wait {duration(others)} there, it waits "
            found.append(
                Finding(
                    text + f"{duration(waited)}, since step {since}",
                    "communication",
                    f"{names[at]}:seconds",
                    waited,
                    low=others,
                    scope="rank",
                    rank=rank,
                    strength=float(np.log(others / max(waited, 1e-9))),
                    since=since,
                )
            )
    # A rank that is late at one collective is late at those after it: report the first.
    yield from found[:1]


def _step_seconds(step: RanksStep) -> float:
    return float(np.median([found.scalars.get("step_seconds", np.nan) for found in step.steps.values()]))


def _recent(step: RanksStep, name: str, ranks: Sequence[int], now: Sequence[float] | Values) -> _Recent | None:
    """The last observations, this one included; None until there are enough."""
    kept = step.memory.get("straggler", Last())
    counted = kept.read("value", (f"{name} observed",))[0]
    place = 0 if np.isnan(counted) else int(counted) % WINDOW
    kept.swap((f"{name} observed",), np.array([float(place + 1)]), step.number)
    kept.swap(tuple(f"{rank}/{name}/{place}" for rank in ranks), np.asarray(now, np.float64), step.number)
    places = [f"{rank}/{name}/{at}" for rank in ranks for at in range(WINDOW)]
    values = kept.read("value", places).reshape(len(ranks), WINDOW)
    if np.isnan(values).any():
        return None
    steps = kept.read("step", places).reshape(len(ranks), WINDOW)[0]
    order = np.argsort(steps, kind="stable")
    return _Recent(name, list(ranks), steps[order], values[:, order])


def _lasting(step: RanksStep, recent: _Recent, at: int | None, sign: float) -> int | None:
    """The step since which the rank at `at` is off, once it has been off for long enough (`at` is None: none is)."""
    is_off = np.arange(len(recent.ranks)) == (-1 if at is None else at)
    names = tuple(map(str, recent.ranks))
    count = step.memory.get(f"straggler {recent.name}", Streak()).update(names, is_off)
    if at is None:
        return None
    begun = step.memory.get(f"straggler {recent.name} since", Last())
    rank = (names[at],)
    since, seen = begun.read("value", rank)[0], begun.read("step", rank)[0]
    if count[at] == 1:
        found, from_the_first = recent.onset(at, sign)
        # A streak interrupted by one odd step did not restart.
        if not (from_the_first and seen >= recent.steps[0]):
            since = float(found)
    begun.swap(rank, np.array([since]), step.number)
    return int(since) if count[at] >= NEEDED else None
