"""The rank of this process and its job, as launchers report them before there is a process group."""

from __future__ import annotations

import os
import re
import socket
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

TOLD = ("RANK", "WORLD_SIZE")
"""Set by torchrun, accelerate, DeepSpeed and everything else that starts the ranks of one training run."""
STARTED = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Set by launchers that start many processes of any kind: Open MPI, MVAPICH, and others that use PMI."""
MEETING = ("MASTER_ADDR", "MASTER_PORT")
LAUNCH = "TORCHELASTIC_RUN_ID"
"""Set by torchrun and the like, which restart the ranks of a job when one has failed."""
LAST_STEP = 0xFFFFFFF0
"""Slurm numbers steps that `srun` did not start, such as the batch script and an interactive shell, from here."""


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank of this process and the world size; (0, 1) if nothing shows that several train one model.

    `srun` and `mpirun` also start independent processes, for example a sweep: those are ranks only if an address for
    their rendezvous is set. A process at a prompt is not a rank, even if such variables are left over.
    """
    if is_interactive():
        return 0, 1
    if found := _pair(environment, *TOLD):
        return found
    if any(environment.get(name) for name in MEETING):
        return started_as(environment) or (0, 1)
    return 0, 1


def started_as(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the number of this process among those `srun` or `mpirun` started with it; None if neither did."""
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


@dataclass(frozen=True)
class Job:
    """What the launcher says about the job of this process."""

    key: str
    """Shared by the ranks of the job and unlike that of concurrent jobs; usable as a file name."""
    mark: str | None
    """The same on all hosts of a job; None if unknown."""
    may_start_again: bool
    """Whether the launcher may restart its ranks."""


def this_job(environment: Mapping[str, str]) -> Job:
    """Return the job of this process."""
    launch = environment.get(LAUNCH, "")
    launch = "" if launch == "none" else launch  # torchrun's value for no id
    slurm, port = environment.get("SLURM_JOB_ID"), environment.get("MASTER_PORT")
    mark = launch or "-".join(filter(None, (slurm, port))) or None
    return Job(file_name(launch or _common_name(environment)), mark, LAUNCH in environment)


def _common_name(environment: Mapping[str, str]) -> str:
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if slurm := environment.get("SLURM_JOB_ID"):
        # The port, because one Slurm step may run several trainings. The address has several spellings.
        return "-".join(filter(None, ["slurm", slurm, environment.get("SLURM_STEP_ID"), port]))
    if port:
        if address in ("", "localhost", "::1") or address.startswith("127."):
            address = socket.gethostname()  # many hosts may run such a job at the same time
        return f"{address}-{port}"
    # One node, and nothing set: the processes share their parent.
    return f"{socket.gethostname()}-{os.getppid()}"


def file_name(text: str) -> str:
    """Turn a text into a file name; different texts get different names."""
    plain = re.sub(r"[^\w.-]", "_", text)[:120]
    return plain if plain == text else f"{plain}-{zlib.crc32(text.encode()):08x}"
