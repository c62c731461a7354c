"""The newest step and the size of a quantity, from file metadata, decoding as little as possible."""

from __future__ import annotations

from vario.core.errors import ConfigError
from vario.core.old_names import stored_names
from vario.core.run_format import LIVE
from vario.core.text import size
from vario.runs.reader import RunReader


def newest_step(run: RunReader, quantity: str) -> int | None:
    """Return the newest step at which any rank recorded a quantity; None if none did."""
    found = [step for rank in run.ranks if (step := newest_of_rank(run, quantity, rank)) is not None]
    return max(found, default=None)


def newest_of_rank(run: RunReader, quantity: str, rank: int) -> int | None:
    """Return the newest step at which one rank recorded a quantity; None if it did not."""
    if quantity not in run.quantities(rank):
        return None
    return run.reader(rank, quantity).newest_step(run.sessions)


def rows_bytes(run: RunReader, quantity: str | None = None) -> int:
    """Return the bytes of all rows on disk, or of one quantity."""
    names = ["*"] if quantity is None else stored_names(quantity)
    total = 0
    patterns = [f"rank*/{name}{end}" for name in names for end in (LIVE, "/part-*")]
    for file in (file for pattern in patterns for file in run.path.glob(pattern)):
        try:
            total += file.lstat().st_size
        except OSError:
            continue  # compacted in the meantime
    return total


def check_size(what: str, num_bytes: int, most: int, instead: str) -> None:
    """Raise ConfigError for what would not fit into memory."""
    if num_bytes > most:
        raise ConfigError(f"{what}: {size(num_bytes)} of rows, but at most {size(most)} fit into memory. {instead}")
