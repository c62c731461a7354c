"""Tensors that have one name on several ranks and are not the same, where nothing says how they belong together.

Expert parallelism keeps other experts under one name on each rank, tensor parallelism may turn parameters into what a
rank has of them, and stages of a pipeline may name their layers alike. Names do not tell whether such tensors are
replicas or pieces; their numbers tell whether they are equal.
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
"""Ranks that are compared with each other."""
NAMED = 3
Summary = npt.NDArray[np.float64]
Rows = Mapping[str, Summary]
"""The Summary of each target."""


@dataclass(frozen=True)
class Unmerged:
    """Targets of one quantity of which merged values show one rank's own."""

    quantity: str
    targets: tuple[str, ...]
    ranks: tuple[int, ...]
    """Ranks whose tensors differ; the first one's are shown."""

    @property
    def text(self) -> str:
        """What is left out, and where it is."""
        names = ", ".join(f"'{name}'" for name in self.targets[:NAMED])
        more = f" and {len(self.targets) - NAMED} more" if len(self.targets) > NAMED else ""
        ranks = ", ".join(map(str, self.ranks))
        return (
            f"{self.quantity} of {names}{more}: ranks {ranks} hold different tensors under one name, and nothing says "
            f"how they belong together. rank='all' shows rank {self.ranks[0]}'s alone; rank=N shows each."
        )


class LeftOut:
    """Says what merged values of one run leave out: to whoever asks, and once for each quantity in the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logged: set[str] = set()

    def note(self, unmerged: Unmerged | None) -> str:
        """It in words; empty where nothing is left out."""
        if unmerged is None:
            return ""
        if unmerged.quantity not in self._logged:
            self._logged.add(unmerged.quantity)
            log.warning("%s: %s Others like it are passed over silently.", self._path, unmerged.text)
        return unmerged.text


def find_unmerged(run: RunReader) -> list[Unmerged]:
    """What merged values leave out, by quantity, judged by the newest step that all ranks have recorded."""
    if len(run.ranks) < 2 or not run.layout.has_strangers:
        return []
    return [found for quantity in run.quantities("all") if (found := unmerged_of(run, quantity)) is not None]


def unmerged_of(run: RunReader, quantity: str, target: str | None = None) -> Unmerged | None:
    """What merged values of a quantity leave out, of one target or of all; None where they are whole."""
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
    """Targets that differ between ranks which are not known to hold the same, from their rows at one step."""
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
    # Two ranks that reduce the same numbers in another order agree but for rounding.
    return bool(np.allclose(one, other, rtol=1e-6, atol=0.0, equal_nan=True))
