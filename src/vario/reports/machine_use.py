"""What the hosts and GPUs of a run did, in a few numbers and words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.core.machine_options import CARBON, COST, ENERGY, HIGHEST, LOWEST, PREFIX
from vario.core.text import number, size
from vario.runs.run import Run

Values = npt.NDArray[np.float64]

_GPU = re.compile(
    rf"{PREFIX}(gpu\d+)/"
    rf"(utilization_percent|power_watts|temperature_celsius(?:{HIGHEST})?|thermal_share|slowdown_share)"
)
_HOST = re.compile(
    rf"{PREFIX}(cpu_percent|memory_available_bytes(?:{LOWEST})?|disk_free_bytes(?:{LOWEST})?)|{ENERGY}|{COST}|{CARBON}"
)
"""What is read: a host with many GPUs has hundreds of numbers."""


@dataclass(frozen=True)
class MachineUse:
    """Means over the run, and the most and least of it; None where nothing was recorded."""

    num_hosts: int
    cpu_percent: float | None
    least_memory_bytes: float | None
    """The least memory that a host had left."""
    least_disk_bytes: float | None
    num_gpus: int
    gpu_percent: float | None
    gpu_watts: float | None
    """Of one GPU."""
    gpu_celsius: float | None
    """The highest of any."""
    throttled_percent: float | None
    """How much of the time a GPU was slowed down because of heat or by its power supply: of the one that was most."""
    energy_watt_hours: float | None
    energy_cost: float | None
    energy_carbon_grams: float | None


def read_machine_use(run: Run) -> MachineUse | None:
    """Read what the ranks that read their hosts recorded; None if none did."""
    hosts = []
    for rank in run.ranks:
        if "scalar" in run.quantities(rank):
            known = run.targets("scalar", rank=rank)
            names = [name for name in known if _GPU.fullmatch(name) or _HOST.fullmatch(name)]
            if names:
                hosts.append({name: run.series(name, "scalar", rank=rank).values for name in names})
    return _use(hosts) if hosts else None


def _use(hosts: Sequence[dict[str, Values]]) -> MachineUse:
    gpus: dict[str, list[Values]] = {}
    names = set()
    for place, host in enumerate(hosts):
        for name, values in host.items():
            if found := _GPU.fullmatch(name):
                names.add((place, found[1]))
                gpus.setdefault(found[2], []).append(values)

    def of(name: str) -> list[Values]:
        return [host[PREFIX + name] for host in hosts if PREFIX + name in host]

    slowed = [_mean([values]) or 0.0 for name in ("thermal_share", "slowdown_share") for values in gpus.get(name, [])]
    return MachineUse(
        num_hosts=len(hosts),
        cpu_percent=_mean(of("cpu_percent")),
        least_memory_bytes=_lowest([*of("memory_available_bytes"), *of(f"memory_available_bytes{LOWEST}")]),
        least_disk_bytes=_lowest([*of("disk_free_bytes"), *of(f"disk_free_bytes{LOWEST}")]),
        num_gpus=len(names),
        gpu_percent=_mean(gpus.get("utilization_percent", [])),
        gpu_watts=_mean(gpus.get("power_watts", [])),
        gpu_celsius=_highest([*gpus.get("temperature_celsius", []), *gpus.get(f"temperature_celsius{HIGHEST}", [])]),
        throttled_percent=100 * max(slowed) if slowed else None,
        energy_watt_hours=_used(hosts, ENERGY),
        energy_cost=_used(hosts, COST),
        energy_carbon_grams=_used(hosts, CARBON),
    )


def _mean(found: Iterable[Values]) -> float | None:
    means = [float(np.nanmean(values)) for values in found if np.isfinite(values).any()]
    return sum(means) / len(means) if means else None


def _lowest(found: Iterable[Values]) -> float | None:
    return min((float(np.nanmin(values)) for values in found if np.isfinite(values).any()), default=None)


def _highest(found: Iterable[Values]) -> float | None:
    return max((float(np.nanmax(values)) for values in found if np.isfinite(values).any()), default=None)


def _used(hosts: Sequence[dict[str, Values]], name: str) -> float | None:
    """The sum of counters that begin again from zero whenever a run is resumed."""
    found = [host[name][np.isfinite(host[name])] for host in hosts if name in host]
    if not found:
        return None
    growth = [np.diff(values, prepend=0.0) for values in found]
    return float(sum(np.where(grown < 0, values, grown).sum() for grown, values in zip(growth, found, strict=True)))


def machine_facts(use: MachineUse) -> Iterator[tuple[str, str]]:
    """Yield a title and its words for the host, its GPUs and their energy."""
    hosts = "" if use.num_hosts == 1 else f"{use.num_hosts} hosts: "
    parts = []
    if use.cpu_percent is not None:
        parts.append(f"CPU {use.cpu_percent:.0f} %")
    if use.least_memory_bytes is not None:
        parts.append(f"at least {size(use.least_memory_bytes)} of memory available")
    if use.least_disk_bytes is not None:
        parts.append(f"{size(use.least_disk_bytes)} of disk free")
    if parts:
        yield "host", hosts + ", ".join(parts)
    if use.num_gpus:
        yield "GPUs", _gpus(use)
    if use.energy_watt_hours is not None:
        yield "energy", _energy(use)


def _gpus(use: MachineUse) -> str:
    parts = []
    if use.gpu_percent is not None:
        parts.append(f"{use.gpu_percent:.0f} % busy")
    if use.gpu_watts is not None:
        parts.append(f"{use.gpu_watts:.0f} W" + (" each" if use.num_gpus > 1 else ""))
    if use.gpu_celsius is not None:
        parts.append(f"up to {use.gpu_celsius:.0f} °C")
    if use.throttled_percent:
        parts.append(f"throttled {number(use.throttled_percent, 2)} % of the time")
    return f"{use.num_gpus}: " + ", ".join(parts) if parts else f"{use.num_gpus}"


def _energy(use: MachineUse) -> str:
    used = use.energy_watt_hours or 0.0
    parts = [f"{number(used / 1000)} kWh" if used >= 1000 else f"{number(used)} Wh"]
    if use.energy_cost is not None:
        parts.append(f"cost {use.energy_cost:.2f}" if use.energy_cost >= 1 else f"cost {number(use.energy_cost, 2)}")
    if use.energy_carbon_grams is not None:
        parts.append(f"{number(use.energy_carbon_grams / 1000, 3)} kg CO2")
    return ", ".join(parts) + " (GPUs)"
