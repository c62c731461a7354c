"""The verdict about the ranks of a run: which one the others wait for, and what each does with a step.

It is that of the rule `straggler`, taken at the end of the last steps, so that a report and a page say what an incident
says, of a run that goes on too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vario.core.records import Frame
from vario.core.text import duration
from vario.rules import RULES
from vario.rules.api.alerts import Alert
from vario.rules.api.rank_observations import OWN, STEP, WINDOW
from vario.rules.api.series_state import Memory, Values
from vario.rules.api.slow_ranks import SlowRank, are_compared, slow_ranks
from vario.rules.api.step_view import Facts, RanksStep, Step
from vario.runs.files import status
from vario.runs.files.arrays import numbers, take
from vario.runs.files.listing_cache import listings_cached
from vario.runs.files.tables import all_columns, in_order
from vario.runs.findings.rank_comparison import comparing_rules
from vario.runs.findings.replay import comparable, frames_of, scalars_of
from vario.runs.reader import RunReader
from vario.runs.views.status.quantity_size import newest_of_rank, rows_bytes

RULE = "straggler"
MOST_STEPS = 1024
MOST_RANK_STEPS = 32_768
"""The last steps that are read: a second's work. Of more ranks, fewer; of very many, none."""
LEAST_STEPS = 2 * WINDOW
MOST_COMMUNICATION_BYTES = 32 << 20
MOSTLY, MOSTLY_SECONDS = 0.5, 0.02
"""All ranks wait for communication if this share of a step and this many seconds are none of their own parts."""
TRIMMED = 0.1
"""The share of steps left out at either end of a mean: a checkpoint, an evaluation."""

Kind = Literal["slow", "communication", "even", "unknown"]


@dataclass(frozen=True)
class RankTimes:
    """What a rank does with a step, in seconds: means of the last steps; None where it was not measured."""

    rank: int
    step_seconds: float | None
    wait_seconds: float | None
    forward_seconds: float | None
    backward_seconds: float | None
    communication_seconds: float | None
    """What is not hidden behind the other parts; None unless `communication` is recorded."""
    update_seconds: float | None
    rest_seconds: float | None
    """Everything else, such as waiting for other ranks; with communication, if that is not recorded."""


@dataclass(frozen=True)
class RankVerdict:
    """Which rank the others wait for, or that there is none."""

    kind: Kind
    text: str
    """One or a few sentences."""
    slow: tuple[SlowRank, ...]
    """Slowest first."""
    times: tuple[RankTimes, ...]
    first_step: int | None
    last_step: int | None
    """The steps it is about."""


@listings_cached()
def rank_verdict(run: RunReader, alerts: Iterable[Alert] = ()) -> RankVerdict | None:
    """Compare what the ranks did in the last steps; None if there is one rank.

    `alerts` are those found in the run: they know since when a rank is slow, and which one was earlier.
    """
    ranks = run.ranks
    if len(ranks) < 2:
        return None
    known = [alert for alert in alerts if alert.rule == RULE and alert.rank is not None]
    num_steps = min(MOST_STEPS, MOST_RANK_STEPS // len(ranks))
    if num_steps < LEAST_STEPS:
        return _unknown(f"{len(ranks):,} ranks were not compared here: `vario check {run.place}` does it.")
    newest = [newest_of_rank(run, "scalar", rank) for rank in ranks]
    last = min((step for step in newest if step is not None), default=None)
    if last is None:
        return _unknown("Nothing recorded yet.")
    read = {rank: _read(run, rank, max(0, last - num_steps + 1), last) for rank in ranks}
    memory = Memory()
    slow: list[SlowRank] = []
    steps: set[int] = set()
    groups = _groups(run)
    for group in groups:
        together = sorted(set.intersection(*(set(read[rank]) for rank in group)))
        steps.update(together)
        found: list[SlowRank] = []
        for number in together:
            step = RanksStep(number, {rank: read[rank][number] for rank in group}, memory)
            found = slow_ranks(step, **_options(run))
        slow += [_since_when(one, together[0], known) for one in found]
    times = tuple(_times(rank, [read[rank][number] for number in sorted(read[rank])]) for rank in ranks)
    slow.sort(key=lambda one: -one.lost_seconds)
    is_known = all(are_compared(memory, group) for group in groups)
    kind, text = _said(slow, times, known, steps, is_known)
    return RankVerdict(kind, text, tuple(slow), times, min(steps, default=None), max(steps, default=None))


def _unknown(text: str) -> RankVerdict:
    return RankVerdict("unknown", text, (), (), None, None)


def _options(run: RunReader) -> dict[str, Any]:
    chosen = next((entry.options for entry in comparing_rules(run) if entry.rule.name == RULE), {})
    return {**RULES.get(RULE).options, **chosen}


def _read(run: RunReader, rank: int, first: int, last: int) -> dict[int, Step]:
    """The steps of one rank, with what tells how long its parts took."""
    if "scalar" not in run.quantities(rank):
        return {}
    scalars = _chosen(run.columns("scalar", ["step", "time", "target", "value"], rank, first), {*OWN, STEP})
    frames: dict[int, list[Frame]] = {}
    if "communication" in run.quantities(rank) and rows_bytes(run, "communication") <= MOST_COMMUNICATION_BYTES:
        table = in_order(run.columns("communication", all_columns("communication"), rank, first))
        for frame in frames_of("communication", table):
            frames.setdefault(frame.step, []).append(frame)
    content = status.read_rank(run.path, rank) or {}
    facts = Facts(rank, run.world_size, coordinates=content.get("coordinates") or {})
    memory = Memory()
    return {
        number: Step(number, time, values, frames.get(number, []), facts, memory)
        for number, (time, values) in scalars.items()
        if number <= last
    }


def _chosen(table: Any, names: set[str]) -> dict[int, tuple[float, dict[str, float]]]:
    if not table.num_rows:
        return {}
    target = table.column("target").combine_chunks()
    wanted = [code for code, name in enumerate(target.dictionary.to_pylist()) if name in names]
    return scalars_of(take(table, np.flatnonzero(np.isin(numbers(target.indices), wanted))))


def _groups(run: RunReader) -> list[list[int]]:
    """Ranks that do the same work."""
    steps = {}
    for rank in run.ranks:
        content = status.read_rank(run.path, rank) or {}
        facts = Facts(rank, run.world_size, coordinates=content.get("coordinates") or {})
        steps[rank] = Step(0, 0.0, {}, [], facts, Memory())
    return [sorted(group) for group in comparable(steps)]


def _since_when(slow: SlowRank, first: int, known: Sequence[Alert]) -> SlowRank:
    """The rank with the step at which the rule saw it begin, if that is before the steps that were read."""
    begun = [alert.began for alert in known if alert.rank == slow.rank and alert.began <= slow.since]
    is_before = slow.since <= first + WINDOW
    return dataclasses.replace(slow, since=max(begun)) if begun and is_before else slow


def _times(rank: int, steps: Sequence[Step]) -> RankTimes:
    found = {name: _mean([step.scalars.get(name, np.nan) for step in steps]) for name in (*OWN, STEP)}
    communication = _mean([_communication(step) for step in steps])
    left, whole = None, found[STEP]
    if whole is not None:
        left = max(0.0, whole - sum(seconds for name in OWN if (seconds := found[name]) is not None))
        communication = None if communication is None else min(communication, left)
    return RankTimes(
        rank=rank,
        step_seconds=whole,
        **{name: found[name] for name in OWN},
        communication_seconds=communication,
        rest_seconds=None if left is None else left - (communication or 0.0),
    )


def _communication(step: Step) -> float:
    """How long a rank spent in collectives; NaN if they were not recorded in this step."""
    rows = step.rows("communication", "seconds")
    if not len(rows):
        return float("nan")
    return float(np.nansum(rows.statistic("mean") * rows.statistic("count")))


def _mean(values: Sequence[float]) -> float | None:
    """The mean of the last ones that are known, without the highest and lowest; None if nothing is known."""
    known: Values = np.sort([value for value in values if np.isfinite(value)][-WINDOW:])
    cut = int(TRIMMED * len(known))
    return float(known[cut : len(known) - cut].mean()) if len(known) else None


def _said(
    slow: Sequence[SlowRank], times: Sequence[RankTimes], known: Sequence[Alert], steps: set[int], is_known: bool
) -> tuple[Kind, str]:
    """The kind of verdict, and its text."""
    if slow:
        waits = f"The others wait {duration(slow[0].lost_seconds)} for it in each step"
        share = f" ({100 * slow[0].share:.0f} % of it)" if slow[0].share is not None else ""
        return "slow", " ".join([*(f"{_sentence(one.text)}" for one in slow), f"{waits}{share}."])
    earlier = list(_earlier(known))
    if not is_known:
        why = f"Of too few of these {len(steps)} steps it is known what each rank did in them."
        early = f"Ranks are compared once they have {WINDOW} steps in common."
        return "unknown", " ".join([early if len(steps) < WINDOW else why, *earlier])
    said = f"No rank is slow (steps {min(steps)} to {max(steps)})."
    waiting = _waiting(times)
    return ("communication" if waiting else "even"), " ".join([said, *([waiting] if waiting else []), *earlier])


def _waiting(times: Sequence[RankTimes]) -> str:
    """What to say if all ranks spend most of a step on none of their own parts; empty if they do not."""
    left = [(one.communication_seconds or 0.0) + (one.rest_seconds or 0.0) for one in times]
    least = int(np.argmin(left))
    one, whole = times[least], times[least].step_seconds or 0.0
    if left[least] < max(MOSTLY * whole, MOSTLY_SECONDS) or all(getattr(one, name) is None for name in OWN):
        return ""
    said = f"{duration(left[least])} or more of a step of {duration(whole)}"
    if one.communication_seconds is None:
        return (
            f"On all of them {said} are none of data, forward, backward and optimizer: most likely communication. "
            "Record the quantity `communication` to see it."
        )
    if one.communication_seconds < MOSTLY * left[least]:
        return f"On all of them {said} are none of data, forward, backward, optimizer and recorded collectives."
    return f"All wait for communication: {duration(one.communication_seconds)} of a step of {duration(whole)}."


def _earlier(known: Sequence[Alert]) -> Iterator[str]:
    """What was found earlier and is no longer so."""
    if known:
        last = max(known, key=lambda alert: alert.step)
        yield f"Earlier, at step {last.step}: {last.text}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
