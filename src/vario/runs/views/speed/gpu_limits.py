"""What a rank's host read of its GPUs that limits the speed: clocks that were lowered, and traffic with the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from vario.core.machine_options import PREFIX
from vario.runs.reader import RunReader

_READINGS = re.compile(rf"{PREFIX}(gpu\d+)/(thermal_share|slowdown_share|pcie_received_bytes_per_second)")


@dataclass(frozen=True)
class GpuLimits:
    """Means over the steps that count; of the GPU with the most, where a host has several."""

    throttled_share: float
    """Of the time, clocks were lowered because of heat, by the power supply or by the hardware itself."""
    throttled_gpu: str
    is_heat: bool
    received_bytes_per_second: float | None
    """From the host, over PCIe."""


def read_gpu_limits(run: RunReader, rank: int, first_step: int, last_step: int) -> GpuLimits | None:
    """Read what a rank recorded of GPUs in these steps; None if it read none."""
    names = [name for name in run.targets("scalar", rank=rank) if _READINGS.fullmatch(name)]
    means: dict[str, dict[str, float]] = {}
    for name in names:
        found = _READINGS.fullmatch(name)
        series = run.series(name, "scalar", rank=rank)
        chosen = series.values[(series.steps >= first_step) & (series.steps <= last_step)]
        chosen = chosen[np.isfinite(chosen)]
        if found is not None and len(chosen):
            means.setdefault(found[2], {})[found[1]] = float(chosen.mean())
    if not means:
        return None
    heat, supply = means.get("thermal_share", {}), means.get("slowdown_share", {})
    slowed = {gpu: max(heat.get(gpu, 0.0), supply.get(gpu, 0.0)) for gpu in {*heat, *supply}}
    worst = max(sorted(slowed), key=lambda gpu: slowed[gpu], default="")
    received = means.get("pcie_received_bytes_per_second", {}).values()
    return GpuLimits(
        throttled_share=slowed.get(worst, 0.0),
        throttled_gpu=worst,
        is_heat=bool(worst) and heat.get(worst, 0.0) >= supply.get(worst, 0.0),
        received_bytes_per_second=max(received, default=None),
    )
