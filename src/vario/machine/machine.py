"""All readings of one process, and how they become numbers of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from vario.core.machine_options import CARBON, COST, ENERGY, PREFIX, Options
from vario.machine.gpus import open_gpus
from vario.machine.host import host_parts, process_parts
from vario.machine.readings import Energy, Gathered, Numbers, Rates, Reading
from vario.machine.system import find_system

MOST_ROWS = 3600
"""Of a run so far; its readings are recorded less often as it gets longer. The first hour has one every second."""

Source = Callable[[Reading], None]


class Machine:
    """Looks at the machine on one thread; another one takes what was found. `now` is a clock in seconds."""

    def __init__(self, sources: Sequence[Source], options: Options) -> None:
        self._sources = sources
        self._options = options
        self._rates, self._energy, self._gathered = Rates(), Energy(), Gathered()
        self._new: Numbers = {}
        """Constants that are not recorded yet."""
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._has_news = False
        self._began: float | None = None
        self._taken = 0.0

    def look(self, now: float) -> None:
        """Read everything once."""
        reading = Reading()
        for read in self._sources:
            read(reading)
        found = {**reading.levels, **self._rates.follow(reading.totals, now)}
        levels = {name: float(value) for name, value in found.items()}
        if "cpu_percent" in levels:
            levels["cpu_percent"] = min(100.0, levels["cpu_percent"])  # its ticks are coarse
        with self._lock:
            self._gathered.add(levels)
            self._energy.follow(reading, now)
            self._new.update((name, value) for name, value in reading.constants.items() if name not in self._known)
            self._known.update(reading.constants)
            self._has_news = True

    def take(self, now: float) -> Numbers:
        """Return what was read since the last numbers were taken; nothing if that is too little or too early."""
        if not self._has_news:
            return {}
        if self._began is None:
            self._began = now
        elif now - self._taken < (now - self._began) / MOST_ROWS:
            return {}
        self._taken = now
        with self._lock:
            self._has_news = False
            numbers = {PREFIX + name: value for name, value in {**self._gathered.take(), **self._new}.items()}
            self._new = {}
            return {**numbers, **self._energy_numbers()}

    def _energy_numbers(self) -> Numbers:
        if not self._energy.is_known:
            return {}
        used = self._energy.watt_hours
        factors = {COST: self._options.get("price"), CARBON: self._options.get("carbon")}
        return {ENERGY: used} | {name: used / 1000 * each for name, each in factors.items() if each is not None}


def open_machine(
    options: Options,
    folder: Path,
    is_reader: bool,
    num_local_ranks: int,
    environment: Mapping[str, str],
    held: ExitStack,
) -> Machine:
    """Return what reads this process, and for the reader of a host the host as well; `held` closes it."""
    system = find_system()
    sources: list[Source] = [process_parts(system).read]
    if is_reader:
        sources.append(host_parts(system, folder).read)
        if (gpus := open_gpus(environment, num_local_ranks)) is not None:
            held.callback(gpus.close)
            sources.append(gpus.read)
    return Machine(sources, options)
