"""Runs rules over a stored run, as if its steps arrived live."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.core.elements.bins import COUNTED, DETAIL
from vario.core.records import BATCH_DIMENSIONS, Frame
from vario.core.text import reason
from vario.rules import RULES, Chosen, Rule, choose
from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.detector import Detector
from vario.rules.api.incidents import collect
from vario.rules.api.series_state import Memory
from vario.rules.api.step_view import Facts, RanksStep, Step
from vario.runs.files import status
from vario.runs.files.arrays import numbers
from vario.runs.files.budget import Budget
from vario.runs.files.store_reader import summaries
from vario.runs.reader import RunReader

log = logging.getLogger("vario")

Wanted = Sequence[str | Rule | Chosen] | Mapping[str, Any] | str | bool | None

Failed = Callable[[str, Exception], None]
Keep = Callable[[str, int], bool]

PASSED_OVER = ("spectrum",)
"""Quantities that no rule reads."""


@dataclass(frozen=True)
class Replay:
    """What rules found in the stored rows of a run."""

    alerts: Sequence[Alert]
    """Each with the incident it belongs to."""
    incidents: Sequence[Incident]
    num_steps: int


class RunDetector:
    """Runs rules over the steps of all ranks, per rank and across ranks."""

    def __init__(
        self,
        chosen: Sequence[Chosen],
        world_size: int,
        alike: Callable[[str, int], Sequence[int]],
        failed: Failed | None = None,
    ) -> None:
        """`alike(target, rank)` returns the ranks with the same part of a parameter.

        `failed` is called for a rule that raises, and the rule is dropped; without it the error propagates.
        """
        self._chosen = list(chosen)
        self._failed = failed
        self._is_alone = world_size == 1
        self._alike = alike
        self._by_rank: dict[int, Detector] = {}
        self._together = Detector(self._chosen, over="ranks", failed=failed)
        self._shared = Memory()
        self._memories: dict[int, Memory] = {}

    def memory(self, rank: int) -> Memory:
        """Return what the rules remember of one rank."""
        return self._memories.setdefault(rank, Memory())

    def see(self, number: int, steps: Mapping[int, Step]) -> list[Alert]:
        """Return what begins in this step, on the ranks that have it."""
        alerts: list[Alert] = []
        for rank, step in steps.items():
            if rank not in self._by_rank:
                self._by_rank[rank] = Detector(self._chosen, failed=self._failed)
            alerts += self._by_rank[rank].see(step, None if self._is_alone else rank)
        if len(steps) > 1:
            for group in comparable(steps):
                alerts += self._together.see(RanksStep(number, group, self._shared, self._alike), None)
        return alerts


def warn_of_failure(part: str, error: Exception) -> None:
    """Log that a rule failed; the others continue."""
    log.warning("%s failed and was skipped: %s", part, reason(error))


def replay(
    run: RunReader,
    chosen: Sequence[Chosen],
    keep: Keep | None = None,
    failed: Failed | None = None,
    quantities: Collection[str] | None = None,
) -> Replay:
    """Run rules over the stored rows of all ranks, as if they arrived now; `keep(quantity, step)` filters frames.

    A rule that raises ends the replay, unless `failed(part, error)` is given. With `quantities`, only these are read,
    and the plain numbers.
    """
    detector = RunDetector(chosen, run.world_size, run.layout.alike, failed)
    alerts: list[Alert] = []
    num_steps = 0
    budget = Budget()
    walks = {rank: rank_steps(run, rank, detector.memory(rank), budget, keep, quantities) for rank in run.ranks}
    for number, steps in _side_by_side(walks):
        num_steps += 1
        alerts += detector.see(number, steps)
    return Replay(*collect(alerts, {found.rule.name: found.rule for found in chosen}), num_steps)


def rules_of(run: RunReader) -> list[Chosen]:
    """Return the rules a run was watched with, if they are known here; all, if it was watched with none."""
    told = run.config.get("rules")
    known = {name: options for name, options in told.items() if name in RULES} if isinstance(told, Mapping) else {}
    return [
        Chosen(rule := RULES.get(name), _known_options(rule, options)) for name, options in known.items()
    ] or choose(None)


def _known_options(rule: Rule, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an older version that the rule still has."""
    return {name: value for name, value in options.items() if name in rule.options}


def chosen_of(rules: Wanted) -> list[Chosen]:
    """Return the rules for names, rules or a table of options."""
    if isinstance(rules, Sequence) and not isinstance(rules, str):
        return [found for rule in rules for found in ([rule] if isinstance(rule, Chosen) else choose([rule]))]
    return choose(rules)


def comparable(steps: Mapping[int, Step]) -> list[dict[int, Step]]:
    """Group ranks that do the same work on different data: equal in all dimensions of the mesh except data."""
    groups: dict[tuple[tuple[str, int], ...], dict[int, Step]] = {}
    for rank, step in steps.items():
        others = {name: at for name, at in step.facts.coordinates.items() if name not in BATCH_DIMENSIONS}
        groups.setdefault(tuple(sorted(others.items())), {})[rank] = step
    return [group for group in groups.values() if len(group) > 1]


def facts_of(run: RunReader, rank: int) -> Facts:
    """Return what is known about a rank besides its rows."""
    content = status.read_rank(run.path, rank) or {}
    return Facts.read(rank, run.world_size, run.structure(rank), coordinates=content.get("coordinates") or {})


def rank_steps(
    run: RunReader,
    rank: int,
    memory: Memory,
    budget: Budget,
    keep: Keep | None = None,
    quantities: Collection[str] | None = None,
) -> Iterator[Step]:
    """Yield the complete steps of one rank in order."""
    facts = facts_of(run, rank)
    scalars = _scalars(run, rank)
    frames: dict[int, list[Frame]] = {}
    stand_in = _stand_in(run, rank)
    for quantity in run.quantities(rank):
        is_read = quantities is None or quantity in quantities or quantity == stand_in
        if quantity != "scalar" and quantity not in PASSED_OVER and is_read:
            more = (DETAIL,) if quantity in COUNTED else ()
            for frame in frames_of(quantity, run.all_rows(quantity, rank, budget, more)):
                if keep is None or keep(quantity, frame.step):
                    frames.setdefault(frame.step, []).append(frame)
                    if quantity == stand_in:
                        frames[frame.step].append(dataclasses.replace(frame, quantity="gradient"))
    for number in sorted({*scalars, *frames}):
        time, values = scalars.get(number, (0.0, {}))
        yield Step(number, time, values, frames.pop(number, []), facts, memory)


def _stand_in(run: RunReader, rank: int) -> str | None:
    """Map gradients of an imported run, recorded at another point of the step, to what the rules read."""
    if "rules" in run.config or "gradient" in run.quantities(rank):
        return None
    return next((name for name in ("gradient_applied", "gradient_accumulated") if name in run.quantities(rank)), None)


def _side_by_side(walks: Mapping[int, Iterator[Step]]) -> Iterator[tuple[int, dict[int, Step]]]:
    waiting = {rank: step for rank, walk in walks.items() if (step := next(walk, None)) is not None}
    while waiting:
        number = min(step.number for step in waiting.values())
        now = {rank: step for rank, step in sorted(waiting.items()) if step.number == number}
        yield number, now
        for rank in now:
            following = next(walks[rank], None)
            if following is None:
                del waiting[rank]
            else:
                waiting[rank] = following


def _scalars(run: RunReader, rank: int) -> dict[int, tuple[float, dict[str, float]]]:
    if "scalar" not in run.quantities(rank):
        return {}
    return scalars_of(run.columns("scalar", ["step", "time", "target", "value"], rank))


def scalars_of(table: Any) -> dict[int, tuple[float, dict[str, float]]]:
    """Return when each step ended, and its plain numbers."""
    found: dict[int, tuple[float, dict[str, float]]] = {}
    columns = (table.column(name).to_pylist() for name in ("step", "time", "target", "value"))
    for step, time, target, value in zip(*columns, strict=True):
        known = found.get(step)
        if known is None:
            found[step] = (time, {target: value})
        else:
            known[1][target] = value
            found[step] = (max(time, known[0]), known[1])
    return found


def frames_of(quantity: str, table: Any) -> Iterator[Frame]:
    """Yield the frames of a table in the order of observation."""
    if not table.num_rows:
        return
    steps = numbers(table.column("step"))
    micro = numbers(table.column("micro_step"))
    order = numbers(table.column("order")).astype(np.int32)
    target = table.column("target").combine_chunks()
    names = np.array(target.dictionary.to_pylist(), dtype=object)
    codes = numbers(target.indices)
    rows = summaries(table)
    bins = table.column(DETAIL) if DETAIL in table.column_names else None
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1) | np.diff(micro, prepend=micro[0]))
    ends = [*starts[1:], len(steps)]
    before: tuple[Any, tuple[str, ...]] = (None, ())
    for start, end in zip(starts, ends, strict=True):
        at = codes[start:end]
        if before[0] is None or not np.array_equal(before[0], at):
            before = (at, tuple(names[at]))
        stored = None if bins is None else _stored_bins(bins, int(start), int(end))
        found = before[1], order[start:end], rows[start:end]
        yield Frame(quantity, int(steps[start]), int(micro[start]), *found, detail=stored)


def _stored_bins(column: Any, start: int, end: int) -> list[bytes] | None:
    """Return the distributions of some rows; None if none of them has one."""
    rows = column.slice(start, end - start)
    return None if rows.null_count == end - start else [row or b"" for row in rows.to_pylist()]
