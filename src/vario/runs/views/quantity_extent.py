"""How far a quantity goes, from what its files tell of themselves: nothing is decoded that does not have to be."""

from __future__ import annotations

from vario.core.errors import ConfigError
from vario.core.run_format import LIVE
from vario.core.text import size
from vario.runs.reader import RunReader


def newest_step(run: RunReader, quantity: str) -> int | None:
    """The newest step at which any rank recorded a quantity; None where nobody did."""
    found = [step for rank in run.ranks if (step := newest_of_rank(run, quantity, rank)) is not None]
    return max(found, default=None)


def newest_of_rank(run: RunReader, quantity: str, rank: int) -> int | None:
    """The newest step at which one rank recorded a quantity; None where it did not."""
    if quantity not in run.quantities(rank):
        return None
    return run.reader(rank, quantity).newest_step(run.sessions)


def rows_bytes(run: RunReader, quantity: str | None = None) -> int:
    """Bytes of all rows on disk, or of one quantity."""
    name = "*" if quantity is None else quantity
    total = 0
    for file in (*run.path.glob(f"rank*/{name}{LIVE}"), *run.path.glob(f"rank*/{name}/part-*")):
        try:
            total += file.lstat().st_size
        except OSError:
            continue  # compacted since we looked
    return total


def check_size(what: str, num_bytes: int, most: int, instead: str) -> None:
    """Refuse what would not fit into memory."""
    if num_bytes > most:
        raise ConfigError(f"{what}: {size(num_bytes)} of rows are more than the {size(most)} that fit. {instead}")
