"""The rank of this process."""

from __future__ import annotations

import os

from mindspore.communication import GlobalComm, get_group_size, get_rank

from vario.backends import launchers

_STARTED = ("RANK_ID", "MS_WORKER_NUM")
"""Set by `msrun` in each process that it starts."""


def rank_and_world_size() -> tuple[int, int]:
    """Return them from MindSpore's communication if it has begun, else from the launcher's environment, else (0, 1)."""
    if GlobalComm.INITED:
        return get_rank(), get_group_size()
    rank, size = (os.environ.get(name, "") for name in _STARTED)
    if rank.isdecimal() and size.isdecimal() and int(rank) < int(size) and not launchers.is_interactive():
        return int(rank), int(size)
    return launchers.rank_and_size(os.environ)
