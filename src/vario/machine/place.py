"""Which of the ranks on a host reads the host for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
"""Where launchers say which rank of its host a process is, and how many there are."""


def reads_host(rank: int, world_size: int, ranks: Sequence[int], environment: Mapping[str, str]) -> bool:
    """Whether this rank reads its host: the lowest one there that records (`ranks`; empty: all do).

    Where no launcher says which ranks share a host, the lowest one of all reads its own.
    """
    if world_size == 1:
        return True
    local = _number(environment, [name for name, _ in LOCAL])
    if local is None:
        return rank == min(ranks, default=0)
    first = rank - local
    return not any(first <= other < rank for other in (ranks or range(first, rank)))


def local_ranks(world_size: int, environment: Mapping[str, str]) -> int:
    """Return how many ranks of this training share the host, as far as a launcher says."""
    if world_size == 1:
        return 1
    return min(world_size, _number(environment, [name for _, name in LOCAL]) or 1)


def spans_hosts(world_size: int, environment: Mapping[str, str]) -> bool:
    """Whether the ranks of this training are on several hosts, as far as a launcher says."""
    local = _number(environment, [name for _, name in LOCAL])
    return local is not None and 0 < local < world_size


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    found = (environment.get(name, "") for name in names)
    return next((int(text) for text in found if text.isascii() and text.isdecimal()), None)
