"""Tensors that have one name on several ranks but differ, and for which the relation is unknown.

Expert parallelism may have different experts under one name on each rank, tensor parallelism may replace parameters by
their local shard, and pipeline stages may use the same names for their layers. Names do not say whether such tensors
are replicas or shards; their numbers show whether they are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vario.core.records import COLUMNS, HELD
from vario.runs.files.store_reader import summaries

if TYPE_CHECKING:
    from vario.runs.reader import RunReader

log = logging.getLogger("vario")

MOST_RANKS = 16
"""The most ranks to compare with each other."""
NAMED = 3
Summary = npt.NDArray[np.float64]
Rows = Mapping[str, Summary]
"""The Summary of each target."""


@dataclass(frozen=True)
class Unmerged:
    """Targets of one quantity whose merged values show only one rank."""

    quantity: str
    targets: tuple[str, ...]
    ranks: tuple[int, ...]
    """Ranks whose tensors differ; those of the first are shown."""

    @property
    def text(self) -> str:
        """What the merged values omit, and how to read it."""
        names = ", ".join(f"'{name}'" for name in self.targets[:NAMED])
        more = f" and {len(self.targets) - NAMED} more" if len(self.targets) > NAMED else ""
        ranks = ", ".join(map(str, self.ranks))
        return (
            f"{self.quantity} of {names}{more}: ranks {ranks} have different tensors with one name, and it is unknown "
            f"how they relate. rank='all' shows only rank {self.ranks[0]}; rank=N shows each."
        )


class LeftOut:
    """Reports what merged values of a run omit: to the caller, and once per quantity in the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logged: set[str] = set()

    def note(self, unmerged: Unmerged | None) -> str:
        """Describe what is omitted; empty if nothing is."""
        if unmerged is None:
            return ""
        if unmerged.quantity not in self._logged:
            self._logged.add(unmerged.quantity)
            log.warning("%s: %s Similar cases are not reported again.", self._path, unmerged.text)
        return unmerged.text


def find_unmerged(run: RunReader) -> list[Unmerged]:
    """Find what merged values omit, by quantity, at the newest step that all ranks have recorded."""
    if len(run.ranks) < 2 or not run.layout.has_strangers:
        return []
    return [found for quantity in run.quantities("all") if (found := unmerged_of(run, quantity)) is not None]


def unmerged_of(run: RunReader, quantity: str, target: str | None = None) -> Unmerged | None:
    """Find what merged values of a quantity omit, for one target or all; None if they are complete."""
    if quantity not in HELD or (target is not None and not run.layout.strangers(target)):
        return None
    ranks = [rank for rank in run.ranks if quantity in run.quantities(rank)][:MOST_RANKS]
    sessions = run.sessions
    newest = {rank: run.reader(rank, quantity).newest_step(sessions) for rank in ranks}
    step = min((found for found in newest.values() if found is not None), default=None)
    if step is None or len(ranks) < 2:
        return None
    columns = ["micro_step", "target", *COLUMNS]
    tables = {rank: run.reader(rank, quantity).read(columns, sessions, target=target, step=step) for rank in ranks}
    return differing(run, quantity, tables)


def differing(run: RunReader, quantity: str, tables: Mapping[int, Any]) -> Unmerged | None:
    """Return the targets that differ between ranks not known to be replicas, from their rows at one step."""
    rows = {rank: _by_target(table) for rank, table in tables.items()}
    targets: dict[str, tuple[int, ...]] = {}
    for name in dict.fromkeys(name for found in rows.values() for name in found):
        groups = run.layout.strangers(name)
        first = [next((rank for rank in group if name in rows.get(rank, {})), None) for group in groups]
        having = [rank for rank in first if rank is not None]
        if any(not _is_same(rows[having[0]][name], rows[rank][name]) for rank in having[1:]):
            targets[name] = tuple(having)
    if not targets:
        return None
    return Unmerged(quantity, tuple(targets), tuple(sorted({rank for ranks in targets.values() for rank in ranks})))


def _by_target(table: Any) -> Rows:
    return dict(zip(table.column("target").to_pylist(), summaries(table), strict=True))


def _is_same(one: Summary, other: Summary) -> bool:
    # Ranks that reduce the same numbers in a different order agree up to rounding.
    return bool(np.allclose(one, other, rtol=1e-6, atol=0.0, equal_nan=True))
