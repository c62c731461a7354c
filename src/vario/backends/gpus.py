"""The properties of a GPU that decide the memory of a training step: sizes, and the kernels torch chooses for it."""

from __future__ import annotations

from dataclasses import dataclass

from vario.core.errors import ConfigError
from vario.core.text import unknown

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_bytes: int
    """Roughly the total that `torch.cuda.mem_get_info` reports."""

    capability: tuple[int, int]
    num_multiprocessors: int
    threads_per_multiprocessor: int = 2048
    context_bytes: int = 500 * MIB
    """Memory that CUDA uses outside torch's allocator."""

    @property
    def matmul_workspace_bytes(self) -> int:
        """Workspace torch keeps for cuBLAS, per thread that multiplies: the caller's and that of the backward pass."""
        return 32 * MIB if self.capability >= (9, 0) else 8 * MIB + 128 * 1024

    @property
    def prefers_cudnn_attention(self) -> bool:
        """Whether torch prefers cuDNN's attention to its own flash kernel."""
        return self.capability >= (9, 0)


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h200", int(139.8 * GIB), (9, 0), 132),
        Gpu("h100", int(79.1 * GIB), (9, 0), 132),
        Gpu("b200", int(178.4 * GIB), (10, 0), 148),
        Gpu("a100", int(79.1 * GIB), (8, 0), 108),
        Gpu("a100-40", int(39.4 * GIB), (8, 0), 108),
        Gpu("l40s", int(44.4 * GIB), (8, 9), 142, 1536),
        Gpu("4090", int(23.5 * GIB), (8, 9), 128, 1536),
        Gpu("3090", int(23.6 * GIB), (8, 6), 82, 1536),
        Gpu("t4", int(14.6 * GIB), (7, 5), 40, 1024),
    )
}
"""By name. Only the H200 was measured; the others follow from torch's own rules and their data sheets."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name, or raise an error that lists the known names."""
    found = GPUS.get(name.lower())
    if found is None:
        raise ConfigError(unknown("gpu", name, GPUS))
    return found
