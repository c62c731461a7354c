"""Which of several processes this one is, as launchers tell it before there is a process group."""

from __future__ import annotations

import sys
from collections.abc import Mapping

TOLD = ("RANK", "WORLD_SIZE")
"""What torchrun, accelerate, DeepSpeed and all that start ranks of one training set."""
STARTED = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""What launchers set that start many processes of any kind: Open MPI, MVAPICH, and others that speak PMI."""
MEETING = ("MASTER_ADDR", "MASTER_PORT")
LAST_STEP = 0xFFFFFFF0
"""Slurm numbers steps that `srun` did not start, such as the batch script and an interactive shell, from here."""


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """The rank of this process and how many there are; (0, 1) where nothing says that several train one model.

    `srun` and `mpirun` start independent processes as well, a sweep for example: theirs are ranks only where an address
    is set at which they are to meet. Whoever types at a prompt is no rank of what the variables are left over from.
    """
    if is_interactive():
        return 0, 1
    if found := _pair(environment, *TOLD):
        return found
    if any(environment.get(name) for name in MEETING):
        return started_as(environment) or (0, 1)
    return 0, 1


def started_as(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The number of this process among those that `srun` or `mpirun` started with it; None where neither did."""
    step = _number(environment, "SLURM_STEP_ID")
    if step is not None and step < LAST_STEP:
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        if found := _pair(environment, "SLURM_PROCID", size):
            return found
    pairs = (_pair(environment, *names) for names in STARTED)
    return next((found for found in pairs if found is not None), None)


def is_interactive() -> bool:
    """Whether this is a notebook or a prompt."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return hasattr(sys, "ps1") or (get_ipython is not None and get_ipython() is not None)


def _pair(environment: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int] | None:
    rank, size = _number(environment, rank_name), _number(environment, size_name)
    return (rank, size) if rank is not None and size is not None and 0 <= rank < size else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
