"""Sentences that several readers of msprobe's files use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vario.compat.msprobe.csv_folders import RankFolder
    from vario.compat.msprobe.csv_rows import StepRows


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def continued(folders: Sequence[RankFolder]) -> list[str]:
    """Return a remark if a rank has several folders, one per session: they may be one run or several."""
    of_ranks = {rank: list(own) for rank, own in groupby(folders, key=lambda folder: folder.rank)}
    several = [rank for rank, own in of_ranks.items() if len(own) > 1]
    if not several:
        return []
    own = of_ranks[several[0]]
    names = ", ".join(folder.path.name for folder in own[:4]) + (", ..." if len(own) > 4 else "")
    others = f", and {counted(len(several) - 1, 'other rank')} with several too" if len(several) > 1 else ""
    return [
        f"rank {several[0]} has {len(own)} folders ({names}){others}: read as one continued run; "
        "use --time-start and --time-end (time_start, time_end) to choose"
    ]


@dataclass
class Repeated:
    """Collects duplicates over many steps, to report them once."""

    num_rows: int = 0
    steps: set[int] = field(default_factory=set)
    shared_steps: set[int] = field(default_factory=set)
    """Steps with rows in several folders."""

    def add(self, rows: StepRows) -> None:
        """Add one step."""
        self.num_rows += rows.num_replaced
        if rows.num_replaced:
            self.steps.add(rows.step)
        if rows.is_shared:
            self.shared_steps.add(rows.step)

    def remarks(self, whose: str) -> Iterator[str]:
        """Yield at most one sentence."""
        if self.shared_steps:
            yield (
                f"{whose}: folders share {_steps(self.shared_steps)}; what later ones have replaces what earlier ones "
                f"have ({counted(self.num_rows, 'row')})"
            )
        elif self.num_rows:
            rows = counted(self.num_rows, "row")
            yield f"{whose}: {rows} of {_steps(self.steps)} occur twice; the later ones are used"


def _steps(steps: set[int]) -> str:
    return f"step {min(steps)}" if len(steps) == 1 else f"{len(steps)} steps ({min(steps)} to {max(steps)})"
