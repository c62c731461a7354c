"""Which rank the others wait for, and where in a step it loses the time: the one verdict of rules, reports and pages.

Ranks wait for each other, so a slow one shows only in what each does before they meet. Of a difference to the others
two things are asked: that it lasts (in most steps of a window, and far beyond its own variation), and that it matters
(a share of the step, and some milliseconds).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vario.core.text import duration
from vario.rules.api.rank_observations import KEPT, OWN, STEP, WINDOW, Observed, Recent, gathered, recent, which
from vario.rules.api.series_state import Last, Memory, Values
from vario.rules.api.step_view import RanksStep

WAIT = "wait_seconds"
MOST = 0.8
"""The share of them in which a rank must be behind by more than half of what it usually is."""
MOST_RANKS = 8
"""The ranks that may be slow at once: those that are furthest behind."""
SPREADS = 6.0
"""How many standard errors the median distance must be away from none, and spreads from where the others are."""
LASTING_SECONDS = 10.0
"""How long it must last: another program on the same processor slows a rank down for seconds."""
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


@dataclass(frozen=True)
class _OwnParts:
    """What the parts that ranks do alone show."""

    slow: tuple[SlowRank, ...] = ()
    behind: frozenset[int] = frozenset()
    """The ranks that are far enough behind: also those of which it is not known yet whether that lasts."""
    is_compared: bool = False


def slow_ranks(step: RanksStep, share: float, seconds: float) -> list[SlowRank]:
    """Take a step of ranks that do the same work; return those the others wait for, by how long.

    A rank is slow from `share` of a step and this many `seconds` on. Steps have to come in order, with one memory.
    """
    own = _of_own_parts(step, share, seconds)
    late = [one for one in _in_collectives(step) if one.rank not in own.behind]
    return sorted([*own.slow, *late], key=lambda one: -one.lost_seconds)


def are_compared(memory: Memory, ranks: list[int]) -> bool:
    """Whether enough is known of the parts of these ranks' steps to say that none is slow."""
    found = memory.worked_out.get(which(ranks))
    return isinstance(found, _OwnParts) and found.is_compared


def _of_own_parts(step: RanksStep, share: float, seconds: float) -> _OwnParts:
    """Ranks that are behind the others when all have done what each does alone; as before until there is more."""
    key = which(step.ranks)
    observed = gathered(step)
    if observed is not None:
        found = recent(step, "own parts", observed)
        step.memory.worked_out[key] = _OwnParts() if found is None else _compared(step, found, share, seconds)
    before = step.memory.worked_out.get(key)
    return before if isinstance(before, _OwnParts) else _OwnParts()


def _compared(step: RanksStep, found: Recent, share: float, seconds: float) -> _OwnParts:
    names = _parts_of(found.at(slice(-WINDOW, None)))
    if not names:
        return _OwnParts()
    found = found.at(np.flatnonzero(np.isfinite([found.numbers[name] for name in names]).all(axis=(0, 1))))
    looks = [found.at(slice(-WINDOW, None))]
    if len(found.steps) >= MOST * KEPT:
        looks.append(found.in_blocks())
    behind: set[int] = set()
    slow: dict[int, SlowRank] = {}
    for look in looks:
        for one in _behind(step, look, names, share, seconds, behind):
            slow.setdefault(one.rank, one)
    return _OwnParts(tuple(slow.values()), frozenset(behind), True)


def _behind(
    step: RanksStep, found: Recent, names: list[str], share: float, seconds: float, behind: set[int]
) -> Iterator[SlowRank]:
    """Yield the slow ranks; adds those that may be to `behind`."""
    own = np.stack([found.numbers[name] for name in names])
    step_seconds = found.step_seconds or float(np.median(own.sum(axis=0)))
    left = list(range(len(found.ranks)))
    for _ in range(min(MOST_RANKS, len(left) - 1)):
        those = own[:, left]
        at, away, lost_in = _last_of(those)
        rank, lost = found.ranks[left.pop(at)], float(np.median(away))
        if lost < max(share * step_seconds, seconds):
            return
        part = _part(step, rank, names, lost_in)
        if lost < _least(names[part], share, seconds, step_seconds):
            continue
        behind.add(rank)
        if not _lasts(away, lost) or not _stands_out(those, at, lost):
            continue
        since = _since(step, found, rank, those[: part + 1].sum(axis=0), at, 1.0)
        if since is not None:
            takes, usual = float(np.median(those[part, at])), float(np.median(np.delete(those[part], at, axis=0)))
            yield SlowRank(rank, "scalar", names[part], takes, usual, lost, lost / step_seconds, since)


def _part(step: RanksStep, rank: int, names: list[str], lost_in: Values) -> int:
    """The part in which a rank loses most; the one that was named before while it loses half as much there."""
    named = step.memory.get("slow ranks: part", Last)
    before, when = named.one("value", str(rank)), named.one("step", str(rank))
    worst = int(np.argmax(lost_in))
    known = names.index(list(OWN)[int(before)]) if before >= 0 and list(OWN)[int(before)] in names else worst
    if step.number - when <= KEPT and known < len(lost_in) and lost_in[known] > 0.5 * lost_in[worst]:
        worst = known
    named.swap_one(str(rank), float(list(OWN).index(names[worst])), step.number)
    return worst


def _parts_of(found: Recent) -> list[str]:
    """The parts that all ranks have in most steps; none if too few steps have all of them."""
    having = {name: np.isfinite(found.numbers[name]).all(axis=0) for name in OWN}
    names = [name for name, is_there in having.items() if is_there.mean() >= MOST]
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


def _in_collectives(step: RanksStep) -> list[SlowRank]:
    """The rank that all others wait for in a collective, wherever it loses the time."""
    names, seconds = step.table("communication", "max", "seconds")
    if np.isnan(seconds).all():
        names, seconds = step.table("communication", "mean", "seconds")
    steps = [step.steps[rank].scalars.get(STEP, np.nan) for rank in step.ranks]
    step_seconds = float(np.nan_to_num(np.median(steps)))
    known = [at for at, name in enumerate(names) if name.startswith(SYMMETRIC) and np.isfinite(seconds[:, at]).all()]
    late = [_last_at(step, names[at], seconds[:, at], step_seconds) for at in known[:MOST_CALLS]]
    # A rank that is late at one collective is late at those after it.
    return [one for one in late if one is not None][:1]


def _last_at(step: RanksStep, call: str, seconds: Values, step_seconds: float) -> SlowRank | None:
    found = recent(step, call, Observed(step.number, {call: seconds}))
    if found is None:
        return None
    found = found.at(slice(-WINDOW, None))
    waits = found.numbers[call]
    last = int(np.argmin(np.median(waits, axis=1)))
    others = np.delete(waits, last, axis=0).min(axis=0)
    waited, waited_by_others = float(np.median(waits[last])), float(np.median(others))
    lost = waited_by_others - waited
    is_late = lost > max(LATE_SHARE * step_seconds, LATE_SECONDS)
    if not is_late or (waits[last] < LATE_RATIO * others).mean() < MOST:
        return None
    rank = found.ranks[last]
    since = _since(step, found, rank, waits, last, -1.0)
    share = lost / step_seconds if step_seconds > 0 else None
    if since is None:
        return None
    return SlowRank(rank, "communication", f"{call}:seconds", waited, waited_by_others, lost, share, since)


def _since(step: RanksStep, found: Recent, rank: int, values: Values, at: int, sign: float) -> int | None:
    """The step since which a rank is slow; None if that is not long ago."""
    name = str(rank)
    begun, when = (step.memory.get(f"slow ranks: {which}", Last) for which in ("since", "when"))
    seen = begun.one("step", name)
    first = _onset(values, at, sign)
    # One odd step does not interrupt it.
    if not (seen >= found.steps[0] and (seen >= found.steps[-2] or first == 0)):
        when.swap_one(name, float(found.times[first]), step.number)
        begun.swap_one(name, float(found.steps[first]), step.number)
    else:
        begun.swap_one(name, begun.one("value", name), step.number)
    lasted = float(found.times[-1]) - when.one("value", name)
    is_timed = found.times[-1] > 0  # not in every imported run
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
