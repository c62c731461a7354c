"""Memory use of a GPU, in total and by this process."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vario.backends.gpus import Gpu


@dataclass(frozen=True)
class GpuMemory:
    """One GPU at one moment, in bytes."""

    device_name: str
    free_bytes: int
    """What the driver can still allocate to any process."""
    total_bytes: int
    allocated_bytes: int
    """Used by tensors of this process."""
    peak_bytes: int
    """The most that tensors of this process ever used."""

    @property
    def used_bytes(self) -> int:
        """Used by all processes together, including their drivers and libraries."""
        return self.total_bytes - self.free_bytes


def gpu_here(device: torch.device | int | None = None) -> Gpu | None:
    """Return the kind of GPU of this process; None without one."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(device if device is not None else torch.cuda.current_device())
    return Gpu(
        name=found.name,
        memory_bytes=found.total_memory,
        capability=(found.major, found.minor),
        num_multiprocessors=found.multi_processor_count,
        threads_per_multiprocessor=found.max_threads_per_multi_processor,
    )


def gpu_memory(device: torch.device | int | None = None) -> GpuMemory | None:
    """Return the memory of one GPU, by default the current one; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    held = stats.get("allocated_bytes", {}).get("all", {})
    return GpuMemory(torch.cuda.get_device_name(device), free, total, held.get("current", 0), held.get("peak", 0))
