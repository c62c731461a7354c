"""What is read of this process and of this host, compared between both ways to read it."""

import mmap
import os
import shutil
import sys
import time

import pytest

from vario.machine import host
from vario.machine.readings import Reading
from vario.machine.system import Proc, Psutil, find_system

psutil = pytest.importorskip("psutil")


@pytest.fixture(params=["proc", "psutil"])
def system(request):
    return Proc() if request.param == "proc" else Psutil(psutil)


def test_both_ways_to_read_agree():
    proc, other = Proc(), Psutil(psutil)
    assert proc.cpu_seconds() == pytest.approx(other.cpu_seconds(), rel=0.01)
    assert proc.memory().total == other.memory().total
    assert proc.memory().available == pytest.approx(other.memory().available, rel=0.05)
    assert proc.private_bytes() == pytest.approx(other.private_bytes(), rel=0.05)
    assert {name for name in proc.disks() if host.is_disk(name)} == {n for n in other.disks() if host.is_disk(n)}
    assert proc.networks().keys() == other.networks().keys()


def test_a_reading_of_a_process(system):
    parts, reading = host.process_parts(system), Reading()
    parts.read(reading)
    assert reading.totals["process_cpu_percent"] == pytest.approx(100 * time.process_time(), rel=0.05)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert 0 < reading.levels["process_private_bytes"] <= resident * 1.05


def test_memory_that_a_process_takes_is_private_and_a_mapped_file_is_not(system, tmp_path):
    before = system.private_bytes()
    taken = bytearray(b"x" * 64 * 2**20)
    grown = system.private_bytes() - before
    assert 60 * 2**20 < grown < 90 * 2**20
    (tmp_path / "rows").write_bytes(taken)
    with open(tmp_path / "rows", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) == 16384 * ord("x")
        assert system.private_bytes() - before < 90 * 2**20


def test_a_reading_of_the_host(system, tmp_path):
    parts, reading = host.host_parts(system, tmp_path / "not" / "yet" / "there"), Reading()
    parts.read(reading)
    assert reading.levels["disk_free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    assert 0 <= reading.levels["memory_available_bytes"] <= reading.constants["memory_total_bytes"]
    assert reading.totals["cpu_percent"] > 0
    traffic = {name for name in reading.totals if name.endswith("_bytes_per_second")}
    assert traffic == {
        f"{part}_bytes_per_second" for part in ("disk_read", "disk_written", "network_received", "network_sent")
    }


def test_without_a_system_there_are_the_disk_and_the_cpu_time(tmp_path):
    reading = Reading()
    host.process_parts(None).read(reading)
    host.host_parts(None, tmp_path).read(reading)
    assert {*reading.levels, *reading.totals} == {"process_cpu_percent", "disk_free_bytes"}


def test_a_part_that_cannot_be_read_is_left_out_and_the_others_go_on():
    tries = []

    def broken(reading):
        tries.append(1)
        raise PermissionError("no")

    def fine(reading):
        reading.levels["a"] = 1.0

    parts = host.Parts({"broken": broken, "fine": fine})
    for _ in range(10):
        reading = Reading()
        parts.read(reading)
        assert reading.levels == {"a": 1.0}
    assert len(tries) == host.MOST_FAILURES


def cgroup(folder, most, used, inactive):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_a_container_has_its_own_memory_limit(tmp_path):
    assert host.memory_limit(tmp_path) == (float("inf"), float("inf"))
    cgroup(tmp_path, 1000, 600, 100)
    assert host.memory_limit(tmp_path) == (1000, 500)
    cgroup(tmp_path, "max", 600, 100)
    assert host.memory_limit(tmp_path) == (float("inf"), float("inf"))


def test_psutil_is_used_where_it_is_installed():
    assert isinstance(find_system(), Psutil)


def test_without_psutil_linux_is_read_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert isinstance(find_system(), Proc)


@pytest.mark.parametrize("name", ["loop0", "ram1", "dm-0", "zram0", "md127"])
def test_traffic_of_virtual_disks_is_not_counted_twice(name):
    assert not host.is_disk(name)
