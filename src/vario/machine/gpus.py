"""The numbers of NVIDIA GPUs, through nvidia-ml-py (`import pynvml`).

GPUs are numbered as NVML and `nvidia-smi` do, over the whole host. What a device or its driver does not offer is left
out.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vario.core.process.at_work import at_work
from vario.machine.readings import Reading

log = logging.getLogger("vario")

KB, KIB = 1000, 1024
MOST_LINKS = 36
POWER_CAP, SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
"""Reasons for lower clocks, bits as in nvml.h; the names of these constants differ between releases of pynvml."""
REASONS = {
    "power_cap_share": POWER_CAP,
    "thermal_share": SOFTWARE_THERMAL | HARDWARE_THERMAL,
    "slowdown_share": SLOWDOWN | POWER_BRAKE,
}
PCIE_SENT, PCIE_RECEIVED = 197, 198
"""Fields: bytes sent and received, in total."""
LINK_SENT, LINK_RECEIVED = 138, 139
"""Fields with a link as their scope: KiB of data, in total."""
NEW_LINK_SENT, NEW_LINK_RECEIVED = 202, 204
"""The same in bytes, on devices that count no KiB."""
Numbers = Callable[[], float]
Field = tuple[int, int]
"""A field's number and its scope."""


def open_gpus(environment: Mapping[str, str], num_local_ranks: int) -> Gpus | None:
    """Return the GPUs that this job may use; None without nvidia-ml-py, a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.debug("machine: no NVIDIA GPU can be read here: %s", error)
        return None
    try:
        handles = _chosen(pynvml, environment.get("CUDA_VISIBLE_DEVICES"), num_local_ranks)
    except pynvml.NVMLError as error:
        log.debug("machine: the NVIDIA GPUs of this host cannot be listed: %s", error)
        handles = {}
    if not handles:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        return None
    return Gpus(pynvml, {name: Gpu(pynvml, handle) for name, handle in handles.items()})


class Gpus:
    """The GPUs of one host that are read; `close` when done."""

    def __init__(self, nvml: Any, gpus: Mapping[str, Gpu]) -> None:
        self._nvml = nvml
        self._gpus = gpus

    def read(self, reading: Reading) -> None:
        """Add the numbers of each GPU. Forks wait meanwhile: the driver's library has locks."""
        for name, gpu in self._gpus.items():
            with at_work():
                gpu.read(f"{name}/", name, reading)

    def close(self) -> None:
        """Let go of the driver's library."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


class Gpu:
    """One GPU: what it offers is found at the first look."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._levels: dict[str, Numbers] | None = None
        self._constants: dict[str, float] = {}
        self._reasons: Callable[[], int] | None = None
        self._fields: dict[str, tuple[list[Field], int]] = {}

    def read(self, prefix: str, name: str, reading: Reading) -> None:
        """Add the numbers of this GPU, those of one reading under names with this prefix."""
        if self._levels is None:
            self._levels = self._look()
        for number, read in self._levels.items():
            if (value := self._value(read)) is not None:
                reading.levels[prefix + number] = value
        if f"{prefix}power_watts" in reading.levels:
            reading.watts[name] = reading.levels[f"{prefix}power_watts"]
        if (
            millijoules := self._value(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        ) is not None:
            reading.joules[name] = millijoules / 1000
        if self._reasons is not None and (bits := self._value(self._reasons)) is not None:
            for number, mask in REASONS.items():
                reading.levels[prefix + number] = float(bool(int(bits) & mask))
        for number, total in self._traffic().items():
            reading.totals[f"{prefix}{number}_bytes_per_second"] = total
        reading.constants.update({prefix + number: value for number, value in self._constants.items()})

    def _value(self, read: Numbers) -> float | None:
        """What a call returns; None where the device or the driver does not offer it, or not now."""
        try:
            return read()
        except self._nvml.NVMLError:
            return None

    def _look(self) -> dict[str, Numbers]:
        """Find out which numbers there are."""
        nvml, handle = self._nvml, self._handle
        top = self._value(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
        memory = self._value(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
        known = {"sm_clock_top_mhz": top, "memory_total_bytes": memory}
        self._constants = {name: float(value) for name, value in known.items() if value is not None}
        # The newer name, which older drivers lack.
        for call in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            read = getattr(nvml, call, None)
            if read is not None and self._value(partial(read, handle)) is not None:
                self._reasons = partial(read, handle)
                break
        self._fields = self._counted()
        return {name: read for name, read in self._offers() if self._value(read) is not None}

    def _offers(self) -> Iterator[tuple[str, Numbers]]:
        nvml, handle = self._nvml, self._handle
        yield "utilization_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        yield "memory_busy_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory
        yield "memory_used_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used
        yield "power_watts", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        yield "sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        yield "memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
        if hasattr(nvml, "nvmlDeviceGetTemperature"):
            yield "temperature_celsius", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        elif hasattr(nvml, "nvmlDeviceGetTemperatureV"):
            yield "temperature_celsius", lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)
        # For devices without counters: the rate of the last 20 ms, for which the call waits.
        for name, way in (("sent", nvml.NVML_PCIE_UTIL_TX_BYTES), ("received", nvml.NVML_PCIE_UTIL_RX_BYTES)):
            if f"pcie_{name}" not in self._fields:
                yield (
                    f"pcie_{name}_bytes_per_second",
                    lambda way=way: nvml.nvmlDeviceGetPcieThroughput(handle, way) * KB,  # type: ignore[misc]
                )

    def _counted(self) -> dict[str, tuple[list[Field], int]]:
        """Which traffic the device counts: by name the fields to add up, and the unit in bytes."""
        links = range(MOST_LINKS)
        wanted: list[tuple[str, Sequence[Field], int]] = [
            ("pcie_sent", [(PCIE_SENT, 0)], 1),
            ("pcie_received", [(PCIE_RECEIVED, 0)], 1),
            ("nvlink_sent", [(LINK_SENT, link) for link in links], KIB),
            ("nvlink_received", [(LINK_RECEIVED, link) for link in links], KIB),
            ("nvlink_sent", [(NEW_LINK_SENT, link) for link in links], 1),
            ("nvlink_received", [(NEW_LINK_RECEIVED, link) for link in links], 1),
        ]
        found: dict[str, tuple[list[Field], int]] = {}
        for name, fields, unit in wanted:
            if name not in found and (there := list(self._read_fields(fields))):
                found[name] = there, unit
        return found

    def _traffic(self) -> dict[str, float]:
        values = self._read_fields([one for fields, _ in self._fields.values() for one in fields])
        return {
            name: float(unit * sum(values[one] for one in fields))
            for name, (fields, unit) in self._fields.items()
            if all(one in values for one in fields)
        }

    def _read_fields(self, fields: Sequence[Field]) -> dict[Field, int]:
        """Return the values of the fields that the device has."""
        if not fields:
            return {}
        try:
            values = self._nvml.nvmlDeviceGetFieldValues(self._handle, list(fields))
        except self._nvml.NVMLError:
            return {}
        found = {}
        for one, value in zip(fields, values, strict=True):
            if value.nvmlReturn == self._nvml.NVML_SUCCESS:
                found[one] = field_value(self._nvml, value)
        return found


def field_value(nvml: Any, field: Any) -> int:
    """Return the whole number in a field: its type says which member of the union it is."""
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return int(getattr(field.value, members.get(field.valueType, "ullVal")))


def _chosen(nvml: Any, visible: str | None, num_local_ranks: int) -> dict[str, Any]:
    """Return the handles of the GPUs of this job, by name."""
    count = nvml.nvmlDeviceGetCount()
    found = {}
    for choice in visible_gpus(visible, count, num_local_ranks):
        with contextlib.suppress(nvml.NVMLError):  # a GPU that is there and cannot be reached
            if isinstance(choice, int):
                handle = nvml.nvmlDeviceGetHandleByIndex(choice)
                found[f"gpu{choice}"] = handle
            elif handle := _by_uuid(nvml, choice, count):
                found[f"gpu{nvml.nvmlDeviceGetIndex(handle)}"] = handle
    return found


def _by_uuid(nvml: Any, uuid: str, count: int) -> Any:
    """The GPU whose identifier begins so, as CUDA allows; for a part of a GPU (MIG) the whole one."""
    if uuid.startswith("MIG-"):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(uuid))
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    matches = [handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(uuid)]
    return matches[0] if len(matches) == 1 else None


def visible_gpus(visible: str | None, count: int, num_local_ranks: int) -> list[int | str]:
    """Return which GPUs a job may use, as `CUDA_VISIBLE_DEVICES` says: numbers and identifiers.

    If it names fewer than there are ranks on this host, each rank has its own, and all GPUs of the host are read. As
    for CUDA, what follows a number that is no GPU does not count.
    """
    if visible is None:
        return list(range(count))
    chosen: list[int | str] = []
    for word in (word.strip() for word in visible.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            chosen.append(word)
        elif word.isascii() and word.isdecimal() and int(word) < count:
            chosen.append(int(word))
        else:
            break
    if chosen and len(chosen) < num_local_ranks:
        return list(range(count))
    return list(dict.fromkeys(chosen))
