"""The numbers of the process and of the host."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from vario.machine.readings import Reading
from vario.machine.system import System, Traffic

log = logging.getLogger("vario")

CGROUPS = Path("/sys/fs/cgroup")
VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md")
"""Their traffic is that of other disks, or of memory."""

Part = Callable[[Reading], None]


MOST_FAILURES = 3
"""In a row, after which a part is left out."""


class Parts:
    """Reads several parts of the machine. One that cannot be read here is left out."""

    def __init__(self, parts: dict[str, Part]) -> None:
        self._parts = parts
        self._failures = dict.fromkeys(parts, 0)

    def read(self, reading: Reading) -> None:
        """Add what every part has."""
        for name, part in list(self._parts.items()):
            try:
                part(reading)
                self._failures[name] = 0
            except Exception as error:  # noqa: BLE001 - systems differ in what they offer, and packages in what they raise
                self._failures[name] += 1
                if self._failures[name] >= MOST_FAILURES:
                    del self._parts[name]
                    log.debug("machine: %s cannot be read here: %s: %s", name, type(error).__name__, error)


def process_parts(system: System | None) -> Parts:
    """Return what reads this process; it needs no privileges."""

    def cpu(reading: Reading) -> None:
        reading.totals["process_cpu_percent"] = 100 * time.process_time()

    parts: dict[str, Part] = {"process cpu": cpu}
    if system is not None:

        def memory(reading: Reading) -> None:
            reading.levels["process_private_bytes"] = system.private_bytes()

        def disk(reading: Reading) -> None:
            read, written = system.process_traffic()
            reading.totals["process_read_bytes_per_second"] = read
            reading.totals["process_written_bytes_per_second"] = written

        parts |= {"process memory": memory, "process disk": disk}
    return Parts(parts)


def host_parts(system: System | None, folder: Path) -> Parts:
    """Return what reads the host, and the disk that this folder is on."""

    def free(reading: Reading) -> None:
        reading.levels["disk_free_bytes"] = shutil.disk_usage(_existing(folder)).free

    parts: dict[str, Part] = {"free disk": free}
    if system is not None:
        num_cores = os.cpu_count() or 1

        def cpu(reading: Reading) -> None:
            reading.totals["cpu_percent"] = 100 * system.cpu_seconds() / num_cores

        def memory(reading: Reading) -> None:
            total, available, swap_used = system.memory()
            limit, within = memory_limit(CGROUPS)
            reading.constants["memory_total_bytes"] = min(total, limit)
            reading.levels["memory_available_bytes"] = min(available, within)
            reading.levels["swap_used_bytes"] = swap_used

        def disks(reading: Reading) -> None:
            read, written = _sum(system.disks(), is_disk)
            reading.totals["disk_read_bytes_per_second"] = read
            reading.totals["disk_written_bytes_per_second"] = written

        def networks(reading: Reading) -> None:
            found = system.networks()
            # A container has virtual interfaces alone; on a host their traffic is that of real ones.
            real = {name: traffic for name, traffic in found.items() if is_network_device(name)}
            received, sent = _sum(real or found, lambda name: name != "lo")
            reading.totals["network_received_bytes_per_second"] = received
            reading.totals["network_sent_bytes_per_second"] = sent

        parts |= {"cpu": cpu, "memory": memory, "disks": disks, "networks": networks}
    return Parts(parts)


def memory_limit(cgroups: Path) -> tuple[float, float]:
    """Return the memory that this process's container may have, and what it may still take; infinite without limit.

    What the container holds of files can be dropped, so it does not count.
    """
    limit = within = float("inf")
    folder = cgroups / _cgroup()
    while folder == cgroups or cgroups in folder.parents:
        try:
            most = int((folder / "memory.max").read_text())  # "max" without a limit
            used = int((folder / "memory.current").read_text())
            details = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            pass
        else:
            limit = min(limit, most)
            within = min(within, max(0, most - used + int(details.get("inactive_file", 0))))
        folder = folder.parent
    return limit, within


def _cgroup() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::/")), "")


def is_disk(name: str) -> bool:
    """Whether a block device is a disk of its own, and no partition of one; where nobody knows, all are."""
    if name.startswith(VIRTUAL_DISKS):
        return False
    return not os.path.isdir("/sys/block") or os.path.exists(f"/sys/block/{name.replace('/', '!')}")


def is_network_device(name: str) -> bool:
    """Whether an interface belongs to a device."""
    return os.path.exists(f"/sys/class/net/{name}/device")


def _sum(traffic: Traffic, counts: Callable[[str], bool]) -> tuple[int, int]:
    chosen = [both for name, both in traffic.items() if counts(name)]
    return sum(first for first, _ in chosen), sum(second for _, second in chosen)


def _existing(folder: Path) -> Path:
    """The folder, or the closest above it that exists already."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
