"""A TrainerMon's sink: writes what msprobe would, and keeps the last step for the API."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vario.compat.msprobe.alarms import Alarms, Place
from vario.compat.msprobe.blocks import Block, Translation
from vario.compat.msprobe.config import MonitorConfig
from vario.compat.msprobe.csv_files import CsvFiles, csv_text
from vario.compat.msprobe.csv_folders import rank_folders
from vario.core.event_file import EventFile
from vario.core.records import Frame, StepRecord

if TYPE_CHECKING:
    from vario.core.event_file import EventFile
    from vario.core.run_header import RunHeader
from vario.sinks import PartsOff

log = logging.getLogger("vario")

Statistics = dict[str, dict[str, Any]]
"""Per tag, each statistic as a tensor without dimensions."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def base_folder() -> Path:
    """`MONITOR_OUTPUT_DIR`, or `monitor_output` here."""
    # Resolved now: a script may change its directory later.
    return Path(os.environ.get("MONITOR_OUTPUT_DIR") or "monitor_output").expanduser().absolute()


def time_tag(now: float) -> str:
    """`Dec03_21-34-40`, in English on every machine."""
    local = time.localtime(now)
    return f"{_MONTHS[local.tm_mon - 1]}{local.tm_mday:02d}_{time.strftime('%H-%M-%S', local)}"


def new_folder(rank: int) -> Path:
    """Return a new folder for this rank and this session."""
    return base_folder() / f"{time_tag(time.time())}-rank{rank}-{uuid.uuid4().hex[:8]}"


def folder_to_continue(config: MonitorConfig, rank: int) -> Path | None:
    """The folder this rank wrote in the time that `append_output` names."""
    if not config.append_output:
        return None
    found = [folder for at, folder in rank_folders(base_folder(), *config.append_output) if at == rank]
    if not found:
        log.warning("append_output: rank %d has no folder in that range; starting a new one", rank)
    return found[-1] if found else None


class Output:
    """One rank's files, over all restarts of its monitor."""

    name: ClassVar[str] = "msprobe"

    def __init__(self, folder: Path, place: Place, continues: bool) -> None:
        self.first_step = 0
        self.folder = folder
        self.last: list[Frame] = []
        """Frames of the last step that was written."""
        self._place = place
        self._continues = continues
        self._csv: CsvFiles | None = None
        self._events: EventFile | None = None
        self._alarms = Alarms((), place, None)
        self._translation: Translation | None = None
        self._is_tensorboard = False
        self._before_flush: list[Callable[[EventFile, bool], None]] = []

    def configure(self, config: MonitorConfig, translation: Translation) -> None:
        """Apply a config from now on; only while no monitor is open."""
        self._translation = translation
        dump = self.folder.parent / "anomaly_detected" if config.alert_dump and config.alert_rules else None
        if tuple(config.alert_rules) != tuple(self._alarms.rules) or dump is not None:
            self._alarms.close()
            self._alarms = Alarms(config.alert_rules, self._place, dump)
        self._csv = self._new_csv(config) if config.format == "csv" else None
        self._is_tensorboard = config.format == "tensorboard"
        self._before_flush = []

    def make_folder(self) -> None:
        """Create the folder immediately, to show where the numbers will be."""
        # If it cannot be created, the first write reports that and retries.
        with contextlib.suppress(OSError):
            os.makedirs(self.folder, exist_ok=True)

    def _new_csv(self, config: MonitorConfig) -> CsvFiles:
        return CsvFiles(self.folder, config.ndigits, config.step_count_per_record)

    def _open_events(self) -> EventFile:
        if self._events is None:
            self._events = EventFile(self.folder, time.time())
        return self._events

    def on_flush(self, call: Callable[[EventFile, bool], None]) -> None:
        """Call with the event file after each step's scalars, and once more, with True, at the end."""
        self._before_flush.append(call)

    def open(self, header: RunHeader) -> None:
        """Start writing."""
        self.first_step = header.first_step or 0
        if self._continues and self._csv is not None:
            self._csv.rewind_to(self.first_step)

    def write(self, record: StepRecord) -> None:
        """Write one step; further records of a step contain nothing for these files."""
        if not record.frames and not self._before_flush:
            return
        self.last = list(record.frames) or self.last
        events = self._open_events() if self._is_tensorboard else None
        # The result of a collective may belong to an earlier step.
        for step in sorted({frame.step for frame in record.frames}):
            for block in self.blocks([frame for frame in record.frames if frame.step == step]):
                self._alarms.look(block, step)
                if self._csv is not None:
                    self._csv.write(block, step)
                elif events is not None:
                    self._add_scalars(events, block, step, record.scalars.time)
        self._alarms.step_ended(record.step)
        if self._csv is not None:
            self._csv.flush()
        elif events is not None:
            for call in self._before_flush:
                call(events, False)
            events.flush()

    def blocks(self, frames: Sequence[Frame]) -> list[Block]:
        """Convert frames to msprobe's blocks."""
        assert self._translation is not None
        return self._translation.blocks(frames)

    def statistics(self, frames: Sequence[Frame], prefix: str, number: Callable[[float], Any]) -> Statistics:
        """Return these frames' statistics for one file prefix; `number` makes a tensor of each."""
        return {
            block.rows.tag(row, self._place.rank): {
                name: number(value)
                for name, value in zip(block.rows.statistics, block.values[row].tolist(), strict=True)
            }
            for block in self.blocks(frames)
            if block.rows.prefix == prefix
            for row in range(len(block.rows.names))
        }

    def _add_scalars(self, events: EventFile, block: Block, step: int, now: float) -> None:
        rows = block.rows
        if "tags" not in rows.made:
            heads = [rows.tag(row, self._place.rank) for row in range(len(rows.names))]
            rows.made["tags"] = [f"{head}_{op}" for head in heads for op in rows.statistics]
        events.add_scalars(rows.made["tags"], block.values.ravel(), step, now)

    def write_stacks(self, stacks: dict[str, str]) -> None:
        """Keep the call stacks of the first step."""
        self.make_folder()
        rows = [["module_name", "stack_info"], *([name, stack] for name, stack in stacks.items())]
        (self.folder / "stack_info.csv").write_text(csv_text(iter(rows)), encoding="utf8")

    def write_structure(self, modules: dict[str, Any]) -> Path:
        """Write the structure of every module's inputs and outputs, and return the path."""
        path = self.folder.parent / "module_struct" / f"rank{self._place.rank}" / "module_struct.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(modules, indent=2) + "\n", encoding="utf8")
        return path

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Ignore failures: the log has them."""

    def close(self, state: str, error: str | None) -> None:
        """Finish writing: everything is on disk."""
        if self._csv is not None:
            self._csv.close()
        if self._events is not None:
            for call in self._before_flush:
                call(self._events, True)
            self._events.close()
            self._events = None
        self._alarms.close()
