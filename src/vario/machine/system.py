"""Where numbers of the host and of this process come from: psutil if it is installed, otherwise Linux's /proc.

Both count the same: memory in bytes, CPU time of all cores in seconds without waiting for disks, traffic in bytes by
device.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Protocol

SECTOR_BYTES = 512
"""In /proc/diskstats, whatever the disk's own."""
BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""What counts as use of the CPU. Time of guests is part of `user`."""

Traffic = dict[str, tuple[int, int]]
"""By device: bytes read and written, or received and sent."""


class Memory(NamedTuple):
    """Memory of the host, in bytes."""

    total: int
    available: int
    swap_used: int


class System(Protocol):
    """What can be read; each method raises OSError where the system does not offer it."""

    def cpu_seconds(self) -> float:
        """Return the time that all cores were busy."""

    def memory(self) -> Memory:
        """Return the memory of the host."""

    def private_bytes(self) -> int:
        """Return the memory that only this process has: without mapped files and shared memory."""

    def process_traffic(self) -> tuple[int, int]:
        """Return the bytes that this process had read from and written to disks."""

    def disks(self) -> Traffic:
        """Return what was read from and written to each block device."""

    def networks(self) -> Traffic:
        """Return what each network interface received and sent."""


class Proc:
    """Linux, without any package."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._tick = os.sysconf("SC_CLK_TCK")

    def cpu_seconds(self) -> float:
        """Return the time that all cores were busy."""
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _read("/proc/stat").split()[1:9])
        return (user + nice + system + irq + softirq + steal) / self._tick

    def memory(self) -> Memory:
        """Return the memory of the host."""
        lines = (line.split() for line in _read("/proc/meminfo").splitlines())
        kib = {words[0][:-1]: int(words[1]) for words in lines}
        if "MemAvailable" not in kib:
            raise OSError("/proc/meminfo: no MemAvailable")
        sizes = kib["MemTotal"], kib["MemAvailable"], kib.get("SwapTotal", 0) - kib.get("SwapFree", 0)
        return Memory(*(1024 * size for size in sizes))

    def private_bytes(self) -> int:
        """Return the memory that only this process has."""
        _size, resident, shared = map(int, _read("/proc/self/statm").split()[:3])
        return (resident - shared) * self._page

    def process_traffic(self) -> tuple[int, int]:
        """Return the bytes that this process had read from and written to disks."""
        found = dict(line.split(": ", 1) for line in _read("/proc/self/io").splitlines())
        return int(found["read_bytes"]), int(found["write_bytes"])

    def disks(self) -> Traffic:
        """Return what was read from and written to each block device."""
        rows = (line.split() for line in _read("/proc/diskstats").splitlines())
        return {row[2]: (int(row[5]) * SECTOR_BYTES, int(row[9]) * SECTOR_BYTES) for row in rows}

    def networks(self) -> Traffic:
        """Return what each network interface received and sent."""
        found: Traffic = {}
        for line in _read("/proc/net/dev").splitlines()[2:]:
            name, _, counts = line.partition(":")
            words = counts.split()
            found[name.strip()] = int(words[0]), int(words[8])
        return found


class Psutil:
    """Any system, through psutil."""

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._process = psutil.Process()

    def cpu_seconds(self) -> float:
        """Return the time that all cores were busy."""
        times = self._psutil.cpu_times()
        return float(sum(getattr(times, name, 0.0) for name in BUSY))

    def memory(self) -> Memory:
        """Return the memory of the host."""
        memory = self._psutil.virtual_memory()
        return Memory(memory.total, memory.available, self._psutil.swap_memory().used)

    def private_bytes(self) -> int:
        """Return the memory that only this process has."""
        memory = self._process.memory_info()
        return int(memory.rss - getattr(memory, "shared", 0))

    def process_traffic(self) -> tuple[int, int]:
        """Return the bytes that this process had read from and written to disks."""
        if not hasattr(self._process, "io_counters"):
            raise OSError("psutil does not count the traffic of processes here")
        found = self._process.io_counters()
        return found.read_bytes, found.write_bytes

    def disks(self) -> Traffic:
        """Return what was read from and written to each block device."""
        found = self._psutil.disk_io_counters(perdisk=True) or {}
        return {name: (one.read_bytes, one.write_bytes) for name, one in found.items()}

    def networks(self) -> Traffic:
        """Return what each network interface received and sent."""
        found = self._psutil.net_io_counters(pernic=True) or {}
        return {name: (one.bytes_recv, one.bytes_sent) for name, one in found.items()}


def find_system() -> System | None:
    """Return what reads this system; None if nothing does."""
    try:
        import psutil
    except ImportError:
        return Proc() if os.path.exists("/proc/self/statm") else None
    return Psutil(psutil)


def _read(path: str) -> str:
    with open(path, encoding="utf8", errors="replace") as file:
        return file.read()
