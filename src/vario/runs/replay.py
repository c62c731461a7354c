"""Rules over a stored run: its steps, read back as the rules of a live run see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.detection.alerts import Alert, Incident
from vario.detection.detector import Detector
from vario.detection.incidents import collect
from vario.detection.memory import Memory
from vario.detection.step import Facts, RanksStep, Step
from vario.records import Frame
from vario.rules import Chosen, choose
from vario.runs import status
from vario.runs.run import Run
from vario.runs.store_reader import summaries

PASSED_OVER = ("communication", "spectrum")
"""Quantities that no rule looks at."""


@dataclass(frozen=True)
class Check:
    """What rules found in a run."""

    alerts: Sequence[Alert]
    incidents: Sequence[Incident]
    num_steps: int


def check(run: Run, rules: Sequence[Chosen] | None = None, keep: Callable[[str, int], bool] | None = None) -> Check:
    """Replay rules over all ranks of a run; `keep(quantity, step)` leaves frames out."""
    chosen = list(choose(None) if rules is None else rules)
    memories: dict[int, Memory] = {}
    by_rank = {rank: Detector(chosen) for rank in run.ranks}
    together = Detector(chosen, over="ranks")
    shared = Memory()
    alerts: list[Alert] = []
    num_steps = 0
    walks = {rank: rank_steps(run, rank, memories.setdefault(rank, Memory()), keep) for rank in run.ranks}
    for number, steps in _side_by_side(walks):
        num_steps += 1
        for rank, step in steps.items():
            alerts += by_rank[rank].see(step, rank if run.world_size > 1 else None)
        if len(steps) > 1:
            for group in comparable(steps):
                alerts += together.see(RanksStep(number, group, shared, run.layout.alike), None)
    return Check(alerts, collect(alerts, {found.rule.name: found.rule for found in chosen}), num_steps)


def comparable(steps: Mapping[int, Step]) -> list[dict[int, Step]]:
    """Ranks in groups that do the same work on different rows: alike in all dimensions of the mesh but the data's."""
    groups: dict[tuple[tuple[str, int], ...], dict[int, Step]] = {}
    for rank, step in steps.items():
        others = {name: at for name, at in step.facts.coordinates.items() if name not in DATA_DIMENSIONS}
        groups.setdefault(tuple(sorted(others.items())), {})[rank] = step
    return [group for group in groups.values() if len(group) > 1]


DATA_DIMENSIONS = frozenset({"data", "dp", "replicate", "shard", "dp_replicate", "dp_shard", "fsdp"})


def facts_of(run: Run, rank: int) -> Facts:
    """What is known of a rank beside its rows."""
    content = status.read_json(run.path / f"rank{rank}" / "rank.json") or {}
    return Facts.read(rank, run.world_size, run.structure(rank), coordinates=content.get("coordinates") or {})


def rank_steps(run: Run, rank: int, memory: Memory, keep: Callable[[str, int], bool] | None = None) -> Iterator[Step]:
    """The steps of one rank in order, each complete."""
    facts = facts_of(run, rank)
    scalars = _scalars(run, rank)
    frames: dict[int, list[Frame]] = {}
    for quantity in run.quantities(rank):
        if quantity != "scalar" and quantity not in PASSED_OVER:
            for frame in _frames(run, quantity, rank):
                if keep is None or keep(quantity, frame.step):
                    frames.setdefault(frame.step, []).append(frame)
    for number in sorted({*scalars, *frames}):
        time, values = scalars.get(number, (0.0, {}))
        yield Step(number, time, values, frames.pop(number, []), facts, memory)


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


def _scalars(run: Run, rank: int) -> dict[int, tuple[float, dict[str, float]]]:
    if "scalar" not in run.quantities(rank):
        return {}
    table = run.columns("scalar", ["step", "time", "target", "value"], rank)
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


def _frames(run: Run, quantity: str, rank: int) -> Iterator[Frame]:
    table: Any = run.to_arrow(quantity, rank)
    if not table.num_rows:
        return
    steps = table.column("step").to_numpy()
    micro = table.column("micro_step").to_numpy()
    order = table.column("order").to_numpy().astype(np.int32)
    target = table.column("target").combine_chunks()
    names = np.array(target.dictionary.to_pylist(), dtype=object)
    codes = target.indices.to_numpy()
    rows = summaries(table)
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1) | np.diff(micro, prepend=micro[0]))
    ends = [*starts[1:], len(steps)]
    before: tuple[Any, tuple[str, ...]] = (None, ())
    for start, end in zip(starts, ends, strict=True):
        at = codes[start:end]
        if before[0] is None or not np.array_equal(before[0], at):
            before = (at, tuple(names[at]))
        yield Frame(quantity, int(steps[start]), int(micro[start]), before[1], order[start:end], rows[start:end])
