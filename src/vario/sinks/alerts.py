"""Rules as a sink: they get each complete step on the writer thread; what they find is written and reported."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np

from vario.core.errors import RunCorrupt
from vario.core.records import StepRecord
from vario.core.run_files import no_links, open_file
from vario.core.run_format import ALERTS, INCIDENTS, RULE_MEMORY
from vario.core.run_header import RunHeader
from vario.rules import Chosen, choose
from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.detector import Detector
from vario.rules.api.incidents import Incidents
from vario.rules.api.series_state import Memory
from vario.rules.api.step_assembler import StepAssembler
from vario.rules.api.step_view import Facts, Step
from vario.rules.api.wording import in_one_line
from vario.sinks import PartsOff
from vario.statistics import columns_needed
from vario.store.line_files import take_back

log = logging.getLogger("vario")

SAVE_SECONDS = 60.0
"""How often the state of the rules is saved; also at the end."""

MOST_WAITING = 1000
"""Lines that wait while the folder cannot be written."""

_LEVELS = {"page": logging.ERROR, "warn": logging.WARNING, "note": logging.INFO}


class Alerts:
    """Runs the rules of one rank, writes `alerts.jsonl` and `incidents.jsonl`, and reports each incident once."""

    name: ClassVar[str] = "alerts"
    first_step: ClassVar[int] = 0

    def __init__(
        self,
        chosen: Sequence[Chosen] | None = None,
        failed: Callable[[str, Exception], None] | None = None,
        writes: bool = True,
    ) -> None:
        """`failed` gets the error of a rule that raises and is switched off; `writes`: whether there is a folder."""
        self._chosen = choose(None) if chosen is None else list(chosen)
        self._detector = Detector(self._chosen, failed=failed)
        self._incidents = Incidents({found.rule.name: found.rule for found in self._chosen})
        self._writes = writes
        self._calls: list[Callable[[Incident], None]] = []
        self._joined_calls: list[Callable[[Incident, Alert], None]] = []
        self.alerts: list[Alert] = []
        """The latest alerts; the folder has all of them."""

    def on_incident(self, call: Callable[[Incident], None]) -> None:
        """Call `call` with each incident when it is reported, on the writer thread."""
        self._calls.append(call)

    def on_joined(self, call: Callable[[Incident, Alert], None]) -> None:
        """Call `call` with each alert that joins an incident after that was reported, on the writer thread."""
        self._joined_calls.append(call)

    def open(self, header: RunHeader) -> None:
        """Restore the state of the rules if a run is resumed."""
        self._rank, self._is_alone = header.rank, header.world_size == 1
        self._is_leading = self._is_alone or header.rank == min(header.config.get("ranks") or [0])
        self._run = header.path
        self._folder = header.path / f"rank{header.rank}"
        self._memory = Memory()
        self._saved = time.monotonic()
        self._files: dict[str, TextIO] = {}
        self._waiting: list[tuple[str, str]] = []
        self._goes_on = self._writes and header.resume
        if self._goes_on:
            self._take_up()
        columns = columns_needed(header.config.get("statistics") or ())
        facts = Facts.read(
            header.rank, header.world_size, header.structure, coordinates=header.coordinates, columns=columns
        )
        self._assembler = StepAssembler(facts, self._memory)

    def write(self, record: StepRecord) -> None:
        """Run the rules on the step before this record's, if it is complete now."""
        if self._goes_on:
            # Steps from here on are trained again, so earlier findings about them no longer apply.
            self._goes_on = False
            for name in (ALERTS, INCIDENTS):
                take_back(self._folder / name, record.step)
        for step in self._assembler.add(record):
            self._look(step)

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Do nothing: the store records failures."""

    def close(self, state: str, error: str | None) -> None:
        """Run the rules on the last step, report what is left, and save the state."""
        for step in self._assembler.flush():
            self._look(step)
        self._tell(self._incidents.flush())
        self._save()
        for file in self._files.values():
            file.close()

    def _look(self, step: Step) -> None:
        before = self._incidents.told
        found = self._incidents.add(step.number, self._detector.see(step, None if self._is_alone else self._rank))
        for alert in found.alerts:
            self._append(ALERTS, alert.to_stored())
        if found.alerts:
            self.alerts = [*self.alerts, *found.alerts][-1000:]
        self._tell(found.told)
        if before is not None and before not in found.told:
            for alert in found.alerts:
                if alert.incident == before.id:
                    for call in self._joined_calls:
                        call(before, alert)
        for incident in found.revised:
            self._append(INCIDENTS, incident.to_stored())
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self._save()

    def _tell(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            self._append(INCIDENTS, incident.to_stored())
            # Alerts that all ranks see are reported by one of them; those only one rank can know are reported there.
            if self._is_leading or incident.severity == "page":
                log.log(_LEVELS[incident.severity], "%s", in_one_line(incident, self._run if self._writes else None))
            for call in self._calls:
                call(incident)

    def _append(self, name: str, content: dict[str, Any]) -> None:
        if self._writes:
            self._waiting = [*self._waiting, (name, json.dumps(content, allow_nan=False) + "\n")][-MOST_WAITING:]
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write waiting lines; what cannot be written waits, as the store's rows do. The store logs the error."""
        try:
            while self._waiting:
                name, line = self._waiting[0]
                if name not in self._files:
                    self._files[name] = open(self._folder / name, "a", encoding="utf8", opener=no_links)  # noqa: SIM115
                self._files[name].write(line)
                self._files[name].flush()
                del self._waiting[0]
        except OSError:
            return

    def _take_up(self) -> None:
        """Restore the state of the rules; a file that cannot be read costs a warm-up, not the run."""
        path = self._folder / RULE_MEMORY
        try:
            with open_file(path, 2) as file, np.load(file, allow_pickle=False) as saved:
                self._memory.restore(dict(saved))
        except FileNotFoundError:
            return
        except (OSError, ValueError, EOFError, KeyError, RunCorrupt, zipfile.BadZipFile) as error:
            log.warning("%s: cannot be read, so the rules start over: %s", path, error)
            self._memory = Memory()

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self._writes:
            self._write_waiting()
            with contextlib.suppress(OSError):
                _replace(self._folder / RULE_MEMORY, self._memory)


def _replace(path: Path, memory: Memory) -> None:
    half = path.with_name(f".{path.name}.tmp")
    with open(half, "wb", opener=no_links) as file:
        np.savez(file, **memory.save())  # type: ignore[arg-type]
    os.replace(half, path)
