"""Which rank the others wait for, and where in a step it loses the time: the one verdict of rules, reports and pages.

Ranks wait for each other, so a slow one shows only in what each does before they meet. Of a difference to the others
two things are asked: that it lasts (in most steps of a window, and far beyond its own variation), and that it matters
(a share of the step, and some milliseconds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vario.core.text import duration
from vario.rules.api.series_state import Last, PerSeries, Positions, Values
from vario.rules.api.step_view import RanksStep

OWN = {
    "update_seconds": "the optimizer",
    "wait_seconds": "loading data, or other work between steps,",
    "forward_seconds": "forward",
    "backward_seconds": "backward",
}
"""The parts of a step that a rank does alone, in order after the reduction of gradients, and what to call them."""
WAIT = "wait_seconds"
STEP = "step_seconds"

WINDOW = 32
"""The last steps that count."""
MOST = 0.8
"""The share of them in which a rank must be behind by more than half of what it usually is."""
BLOCK, BLOCKS = 8, 16
"""Means of so many steps count as one, if the steps alone show nothing: several workers that load slowly are all late
at the same step, and the steps after that find their batches ready."""
KEPT = BLOCK * BLOCKS
SPREADS = 6.0
"""How many standard errors the median distance must be away from none, and spreads from where the others are."""
LASTING_SECONDS = 2.0
"""How long it must last: another process on the same processor takes turns for a part of a second."""
WAIT_SHARE, WAIT_SECONDS = 0.15, 0.03
"""What counts between steps: the loop's own work there varies, and the monitor does most of its own on one rank."""

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "alltoall", "barrier")
"""Collectives that no rank leaves before all have arrived: the rank that waits least arrives last."""
MOST_CALLS = 32
LATE_SHARE, LATE_RATIO, LATE_SECONDS = 0.15, 0.5, 0.05
"""A rank is late if all others wait longer, by this share of a step and this many seconds, and it waits less than this
fraction of their time."""


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for."""

    rank: int
    quantity: str
    target: str
    """The part of a step in which it loses most, or the collective at which it arrives last."""
    seconds: float
    """What that part takes on this rank, as a median; of a collective, how long it waits there."""
    usual_seconds: float
    """The same on the others."""
    lost_seconds: float
    """How long the others wait for it, in each step."""
    share: float | None
    """The same as a share of a step; None if nobody measured that."""
    since: int
    """The step since which it is slow."""

    @property
    def text(self) -> str:
        """One sentence with all numbers."""
        own, usual = duration(self.seconds), duration(self.usual_seconds)
        if self.quantity == "scalar":
            said = f"{OWN[self.target]} takes {own}, on the others {usual}"
        else:
            call = self.target.removesuffix(":seconds")
            said = f"it arrives last at {call}: the others wait {usual} there, it waits {own}"
        return f"rank {self.rank} is slow: {said}, since step {self.since}"


class Window(PerSeries):
    """The last observations of each series, the newest last."""

    fields: ClassVar[Mapping[str, float]] = dict.fromkeys(map(str, range(KEPT)), np.nan)

    def push(self, names: tuple[str, ...], values: Values) -> Values:
        """Add one observation of each series; return their last ones, by series and observation."""
        rows = self.at(names)
        self._made()
        kept = self._table[:, rows]
        kept[:-1] = kept[1:]
        kept[-1] = values
        self._table[:, rows] = kept
        return kept.T


@dataclass(frozen=True)
class _Recent:
    """The last observations of some numbers on all ranks."""

    ranks: list[int]
    steps: Values
    times: Values
    """When these steps ended."""
    numbers: Mapping[str, Values]
    """By rank and observation."""

    @property
    def step_seconds(self) -> float:
        """What a step takes; 0 if nobody measured it."""
        found = self.numbers[STEP][np.isfinite(self.numbers[STEP])]
        return float(np.median(found)) if len(found) else 0.0

    def at(self, chosen: Positions | slice) -> _Recent:
        """These observations alone."""
        numbers = {name: values[:, chosen] for name, values in self.numbers.items()}
        return _Recent(self.ranks, self.steps[chosen], self.times[chosen], numbers)

    def in_blocks(self) -> _Recent:
        """Means of several steps in place of each one, with the first step of each."""
        found = self.at(slice(len(self.steps) % BLOCK, None))
        means = {
            name: values.reshape(len(self.ranks), -1, BLOCK).mean(axis=2) for name, values in found.numbers.items()
        }
        return _Recent(self.ranks, found.steps[::BLOCK], found.times[::BLOCK], means)


def slow_ranks(step: RanksStep, share: float, seconds: float) -> list[SlowRank]:
    """Take a step of ranks that do the same work; return those the others wait for, by how long.

    A rank is slow from `share` of a step and this many `seconds` on. Steps have to come in order, with one memory.
    """
    found = list(_in_own_parts(step, share, seconds))
    behind = step.memory.get("slow ranks: behind", Last())
    explained = {rank for rank in step.ranks if behind.one("step", str(rank)) == step.number}
    found += [one for one in _in_collectives(step) if one.rank not in explained]
    return sorted(found, key=lambda one: -one.lost_seconds)


def _in_own_parts(step: RanksStep, share: float, seconds: float) -> Iterator[SlowRank]:
    """Ranks that are behind the others when all have done what each does alone."""
    recent = _observe(step, {name: _scalars(step, name) for name in (*OWN, STEP)})
    names = [] if recent is None else _parts_of(recent.at(slice(-WINDOW, None)))
    if recent is None or not names:
        return
    recent = recent.at(np.flatnonzero(np.isfinite([recent.numbers[name] for name in names]).all(axis=(0, 1))))
    looks = [recent.at(slice(-WINDOW, None))]
    if len(recent.steps) >= MOST * KEPT:
        looks.append(recent.in_blocks())
    told: set[int] = set()
    for look in looks:
        for one in _behind(step, look, names, share, seconds):
            if one.rank not in told:
                told.add(one.rank)
                yield one


def _behind(step: RanksStep, recent: _Recent, names: list[str], share: float, seconds: float) -> Iterator[SlowRank]:
    own = np.stack([recent.numbers[name] for name in names])
    step_seconds = recent.step_seconds or float(np.median(own.sum(axis=0)))
    left = list(range(len(recent.ranks)))
    while len(left) > 1:
        at, behind, lost_in = _last_of(own[:, left])
        rank, lost = recent.ranks[left[at]], float(np.median(behind))
        part = _part(step, rank, names, lost_in)
        if lost < _least(names[part], share, seconds, step_seconds):
            return
        step.memory.get("slow ranks: behind", Last()).swap_one(str(rank), lost, step.number)
        if not _lasts(behind, lost) or not _stands_out(own[:, left], at, lost):
            return
        usual, takes = np.median(np.delete(own[part, left], at, axis=0)), np.median(own[part, left[at]])
        since = _since(step, recent, rank, own[: part + 1, left].sum(axis=0), at, 1.0)
        if since is not None:
            share_of_step = lost / step_seconds
            yield SlowRank(rank, "scalar", names[part], float(takes), float(usual), lost, share_of_step, since)
        left.pop(at)


def _part(step: RanksStep, rank: int, names: list[str], lost_in: Values) -> int:
    """The part in which a rank loses most; the one that was named before while it loses half as much there."""
    named = step.memory.get("slow ranks: part", Last())
    before, when = named.one("value", str(rank)), named.one("step", str(rank))
    worst = int(np.argmax(lost_in))
    known = names.index(list(OWN)[int(before)]) if before >= 0 and list(OWN)[int(before)] in names else worst
    if step.number - when <= KEPT and known < len(lost_in) and lost_in[known] > 0.5 * lost_in[worst]:
        worst = known
    named.swap_one(str(rank), float(list(OWN).index(names[worst])), step.number)
    return worst


def _scalars(step: RanksStep, name: str) -> Values:
    return np.array([step.steps[rank].scalars.get(name, np.nan) for rank in step.ranks])


def _parts_of(recent: _Recent) -> list[str]:
    """The parts that all ranks have in most steps; none if too few steps have all of them."""
    having = {name: np.isfinite(recent.numbers[name]).all(axis=0) for name in OWN}
    names = [name for name, found in having.items() if found.mean() >= MOST]
    is_enough = names and np.all([having[name] for name in names], axis=0).mean() >= MOST
    return names if is_enough else []


def _least(name: str, share: float, seconds: float, step_seconds: float) -> float:
    if name == WAIT:
        share, seconds = max(share, WAIT_SHARE), max(seconds, WAIT_SECONDS)
    return max(share * step_seconds, seconds)


def _last_of(own: Values) -> tuple[int, Values, Values]:
    """The rank that is furthest behind, by how much in each observation, and how much of it it lost in each part.

    A rank that waits inside a part for another was ahead before: so what counts is the time up to the end of each part.
    """
    until = np.cumsum(own, axis=0)
    away = np.median(until - np.median(until, axis=1, keepdims=True), axis=2)
    at = int(np.argmax(away.max(axis=0)))
    behind = until[:, at] - np.median(np.delete(until, at, axis=1), axis=1)
    end = int(np.argmax(np.median(behind, axis=1)))
    each = np.median(own[: end + 1, at] - np.median(np.delete(own[: end + 1], at, axis=1), axis=1), axis=1)
    return at, behind[end], each


def _lasts(behind: Values, lost: float) -> bool:
    """Whether a rank is behind in most observations, by far more than chance makes the median of them."""
    error = 1.25 * 1.4826 * float(np.median(np.abs(behind - lost))) / np.sqrt(len(behind))
    return float((behind > 0.5 * lost).mean()) >= MOST and lost > SPREADS * error


def _stands_out(own: Values, at: int, lost: float) -> bool:
    """Whether a rank is further away from the others than they are from each other."""
    others = np.median(np.delete(own.sum(axis=0), at, axis=0), axis=1)
    return len(others) < 3 or lost > SPREADS * 1.4826 * float(np.median(np.abs(others - np.median(others))))


def _in_collectives(step: RanksStep) -> Iterator[SlowRank]:
    """Ranks that all others wait for in a collective, wherever they lose the time."""
    names, seconds = step.table("communication", "max", "seconds")
    if np.isnan(seconds).all():
        names, seconds = step.table("communication", "mean", "seconds")
    step_seconds = float(np.median(_scalars(step, STEP)))
    for at in [at for at, name in enumerate(names) if name.startswith(SYMMETRIC)][:MOST_CALLS]:
        recent = _observe(step, {names[at]: seconds[:, at]})
        if recent is None or len(recent.ranks) < 2:
            continue
        recent = recent.at(slice(-WINDOW, None))
        waits = recent.numbers[names[at]]
        last = int(np.argmin(np.median(waits, axis=1)))
        others = np.delete(waits, last, axis=0).min(axis=0)
        waited, waited_by_others = float(np.median(waits[last])), float(np.median(others))
        lost = waited_by_others - waited
        if lost > max(LATE_SHARE * step_seconds, LATE_SECONDS) and (waits[last] < LATE_RATIO * others).mean() >= MOST:
            rank, target = recent.ranks[last], f"{names[at]}:seconds"
            since = _since(step, recent, rank, waits, last, -1.0)
            if since is not None:
                share = lost / step_seconds if step_seconds > 0 else None
                yield SlowRank(rank, "communication", target, waited, waited_by_others, lost, share, since)
                return  # a rank that is late at one collective is late at those after it


def _observe(step: RanksStep, numbers: Mapping[str, Values]) -> _Recent | None:
    """Add what was measured in a step; return the last observations, or None until there are enough."""
    ranks = step.ranks
    if np.isnan([*numbers.values()]).all():
        return None
    # A step that some ranks do not have is no observation of the others either: those go on side by side.
    which = f"{len(ranks)} from {ranks[0]} to {ranks[-1]}, {next(iter(numbers))}"
    names = (*(f"{rank}/{name}" for name in numbers for rank in ranks), "step", "time")
    times = [step.steps[rank].time for rank in ranks]
    now = np.concatenate([*numbers.values(), [step.number, max(times)]])
    kept = step.memory.get(f"slow ranks: {which}", Window()).push(names, now)
    kept = kept[:, np.isfinite(kept[-2])]
    values = kept[:-2].reshape(len(numbers), len(ranks), -1)
    is_enough = kept.shape[1] >= WINDOW
    return _Recent(ranks, kept[-2], kept[-1], dict(zip(numbers, values, strict=True))) if is_enough else None


def _since(step: RanksStep, recent: _Recent, rank: int, values: Values, at: int, sign: float) -> int | None:
    """The step since which a rank is slow; None if that is not long ago."""
    name = str(rank)
    begun, when = (step.memory.get(f"slow ranks: {which}", Last()) for which in ("since", "when"))
    seen = begun.one("step", name)
    first = _onset(values, at, sign)
    # One odd step does not interrupt it.
    if not (seen >= recent.steps[0] and (seen >= recent.steps[-2] or first == 0)):
        when.swap_one(name, float(recent.times[first]), step.number)
        begun.swap_one(name, float(recent.steps[first]), step.number)
    else:
        begun.swap_one(name, begun.one("value", name), step.number)
    lasted = float(recent.times[-1]) - when.one("value", name)
    is_timed = recent.times[-1] > 0  # not in every imported run
    return None if is_timed and lasted < LASTING_SECONDS else int(begun.one("value", name))


def _onset(values: Values, at: int, sign: float) -> int:
    """The observation since which one rank is off: most after it exceed half of the distance, most before do not.

    A step may be slow on all ranks, or on one of the others: so a rank is compared with the others in the same step and
    with their usual time, and what separates better counts.
    """
    others = np.delete(values, at, axis=0)
    now, always = np.median(others, axis=0), np.full(values.shape[1], np.median(others))
    splits = []
    # The last rank waits as long as ever: only a comparison with the others in the same step shows it.
    for usual in (always, now) if sign > 0 else (now,):
        away = sign * (values[at] - usual)
        is_off = away > 0.5 * np.median(away[len(away) // 2 :])
        weights = np.cumsum(np.where(is_off, 1, -1)[::-1])[::-1]
        first = int(np.flatnonzero(weights == weights.max())[-1])
        splits.append((int(is_off[:first].sum() + (~is_off[first:]).sum()), first))
    return min(splits)[1]
