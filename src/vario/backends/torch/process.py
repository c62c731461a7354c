"""The rank of this process, and versions."""

from __future__ import annotations

import os

import torch

from vario.backends import launchers


def rank_and_world_size() -> tuple[int, int]:
    """Return them from the process group if there is one, else from the launcher's environment, else (0, 1)."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return launchers.rank_and_size(os.environ)


def versions() -> dict[str, str]:
    """Return the versions of torch and of what it was built for."""
    found = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found
