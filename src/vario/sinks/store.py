"""The run store: each rank's records as Arrow streams that become Parquet parts.

Every row is in the kernel's hands when `write` returns, so killing the process loses nothing. See
`docs/run-format.md` for what lies where.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vario.core import run_format
from vario.core.errors import RunTaken
from vario.core.processes import this_process
from vario.core.records import COLUMNS, Frame, StepRecord
from vario.core.run_files.shapes import COLLECTIVES, read_json
from vario.core.text import size
from vario.sinks import PartsOff, RunHeader
from vario.sinks.compaction import Compactor
from vario.sinks.encoding import StreamEncoder, in_batches
from vario.sinks.folder import Claim, claim, leading_rank, write_json
from vario.sinks.holding import has_lost
from vario.sinks.live_file import LiveFile
from vario.sinks.recovery import part_path, recover
from vario.sinks.rollups import OUTLINED_ROWS, STRETCH_STEPS
from vario.statistics import columns_needed

log = logging.getLogger("vario")

STATUS_SECONDS = 1.0
"""`rank.json` is rewritten at most this often."""


class _Stream:
    """The live stream of one quantity."""

    def __init__(self, folder: Path, quantity: str, part: int, session: int, columns: frozenset[str]) -> None:
        self.encoder = StreamEncoder(quantity, part, session, columns)
        self.file = LiveFile(folder / f"{quantity}{run_format.LIVE}", self.encoder.opening)
        self.num_steps = 0
        self._last_step: int | None = None

    def add(self, steps: set[int], encoded: bytes) -> None:
        self.file.append(encoded, self.encoder.num_names)
        self.num_steps += len(steps - {self._last_step})
        self._last_step = max(steps)


class Store:
    """Writes one rank's folder of a run."""

    name: ClassVar[str] = "store"

    def __init__(
        self,
        part_steps: int = 128,
        part_bytes: int = 32 << 20,
        small_part_bytes: int = 2 << 20,
        backlog_bytes: int = 64 << 20,
        outlined_rows: int = OUTLINED_ROWS,
        stretch_steps: int = STRETCH_STEPS,
    ) -> None:
        """Nothing is touched yet.

        A part closes at `part_bytes`, or after `part_steps` steps unless it is still smaller than `small_part_bytes`:
        a run of few targets would leave thousands of tiny files. At most about `backlog_bytes` wait in memory for a
        disk that takes nothing. A quantity of `outlined_rows` rows gets outlines, of `stretch_steps`
        steps each once it is long.
        """
        self.first_step = 0
        self.dropped_steps = 0
        self._part_steps = part_steps
        self._part_bytes = part_bytes
        self._small_part_bytes = small_part_bytes
        self._backlog_bytes = backlog_bytes
        self._streams: dict[str, _Stream] = {}
        self._highest_part: dict[str, int] = {}
        self._compactor = Compactor(outlined_rows, stretch_steps)
        self._claim: Claim | None = None
        self._established = self._is_lost = False
        self._run: dict[str, Any] = {}
        self._collectives: dict[str, dict[str, Any]] = {}
        self._collectives_are_new = False
        self._unopened: list[StepRecord] = []
        self._waiting_steps: set[int] = set()
        self._warned: set[str] = set()
        self._parts_off: PartsOff = []
        self._num_refused = 0
        self._last_step: int | None = None
        self._status_time = float("-inf")

    def open(self, header: RunHeader) -> None:
        """Take the folder, or go on with the run in it; a RunError says why it must not be written."""
        self._header = header
        self._rank_folder = header.path / f"rank{header.rank}"
        statistics = header.config.get("statistics")
        self._columns = frozenset(COLUMNS) if statistics is None else columns_needed(statistics)
        self.first_step = header.first_step or 0
        self._attempt("record", self._establish)

    def write(self, record: StepRecord) -> None:
        """Append one step; what the disk does not take waits in memory and is tried again with the next step."""
        self.write_all([record])

    def write_all(self, records: Sequence[StepRecord]) -> None:
        """Append steps."""
        if self._waiting_bytes() >= self._backlog_bytes and not self._attempt("record", self._flush):
            self.dropped_steps += len({record.step for record in records})
            return
        self._waiting_steps.update(record.step for record in records)
        self._last_step = records[-1].step
        if self._established:
            self._encode(records)
        else:
            self._unopened += records
        if not self._attempt("record", self._flush):
            self._check_holding()  # a file that is in the way may be that of another process
            return
        self._waiting_steps.clear()
        if self._collectives_are_new:
            self._attempt("write collectives.json", self._write_collectives)
        for quantity, stream in list(self._streams.items()):
            if self._is_due(stream):
                self._attempt("close a part", lambda quantity=quantity: self._rotate(quantity))  # type: ignore[misc]
        now = records[-1].scalars.time
        if abs(now - self._status_time) >= STATUS_SECONDS:
            self._status_time = now
            self._check_holding()
            self._attempt("write rank.json", self._write_rank)

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Show what failed in `rank.json`, from now on."""
        self._parts_off = list(parts_off)
        self._num_refused = num_refused
        if self._established:
            self._attempt("write rank.json", self._write_rank)

    def close(self, state: str, error: str | None) -> None:
        """Close and compact all parts and keep how the run ended."""
        if self._is_lost:
            return
        # Now, not after compaction: the order of these times tells which of several ranks failed first.
        ended = time.time()
        if self._attempt("record", self._flush):
            self._waiting_steps.clear()
        elif self._waiting_steps:
            self.dropped_steps += len(self._waiting_steps)
            log.warning("%s: the last %d steps are not recorded", self._header.path, len(self._waiting_steps))
        for quantity, stream in list(self._streams.items()):
            if stream.file.size:
                self._attempt("close a part", lambda quantity=quantity: self._rotate(quantity))  # type: ignore[misc]
            stream.file.close()
        self._streams.clear()
        self._compactor.finish()
        if self._established:
            self._attempt("write rank.json", lambda: self._write_rank(state, error, ended))
            self._attempt("write run.json", lambda: self._write_run(state, error, ended))

    def _encode(self, records: Sequence[StepRecord]) -> None:
        frames: dict[str, list[Frame]] = {}
        for record in records:
            for collective in record.collectives:
                self._collectives[collective.target] = dataclasses.asdict(collective)
                self._collectives_are_new = True
            for frame in record.frames:
                if len(frame.targets):
                    frames.setdefault(frame.quantity, []).append(frame)
        for quantity, found in frames.items():
            stream = self._stream(quantity)
            for some in in_batches(found):
                stream.add({frame.step for frame in some}, stream.encoder.encode_frames(some))
        if scalars := [record.scalars for record in records if record.scalars.values]:
            stream = self._stream("scalar")
            stream.add({one.step for one in scalars}, stream.encoder.encode_scalars(scalars))

    def _stream(self, quantity: str) -> _Stream:
        stream = self._streams.get(quantity)
        if stream is None:
            assert self._claim is not None
            part = self._highest_part.get(quantity, 0) + 1
            self._highest_part[quantity] = part
            stream = _Stream(self._rank_folder, quantity, part, self._claim.session, self._columns)
            self._streams[quantity] = stream
        return stream

    def _is_due(self, stream: _Stream) -> bool:
        written = stream.file.size
        return written >= self._part_bytes or (
            stream.num_steps >= self._part_steps and written >= self._small_part_bytes
        )

    def _rotate(self, quantity: str) -> None:
        stream = self._streams[quantity]
        part = part_path(self._rank_folder, quantity, stream.encoder.part)
        part.parent.mkdir(exist_ok=True)
        stream.file.rename(part)
        del self._streams[quantity]
        self._compactor.add(part)

    def _waiting_bytes(self) -> int:
        unopened = sum(frame.summaries.nbytes for record in self._unopened for frame in record.frames)
        return unopened + sum(stream.file.pending_bytes for stream in self._streams.values())

    def _check_holding(self) -> None:
        """A process that slept for long may find that another one has gone on with its run."""
        if self._claim is not None and self._established and has_lost(self._rank_folder, self._claim.number):
            self._is_lost = True
            raise RunTaken(
                f"{self._header.path}: another process has taken over this run; it is no longer written here."
            )

    # -- the disk ------------------------------------------------------------------------------------------------

    def _attempt(self, task: str, action: Callable[[], None]) -> bool:
        """Do something with the disk; say once when that fails, and once when recording works again."""
        try:
            action()
        except OSError as error:
            first = not self._warned
            self._warned.add(task)
            if first:
                log.warning(
                    "%s: cannot %s: %s. Training goes on; up to %s of steps wait in memory and are tried again with "
                    "each step, those beyond are dropped and counted.",
                    self._header.path,
                    task,
                    error,
                    size(self._backlog_bytes),
                )
            return False
        if task in self._warned:
            self._warned.clear()
            log.info("%s: can %s again; %d steps were dropped", self._header.path, task, self.dropped_steps)
        return True

    def _flush(self) -> None:
        if not self._established:
            self._establish()
        if self._unopened:
            waiting, self._unopened = self._unopened, []
            self._encode(waiting)
        try:
            self._flush_streams()
        except FileNotFoundError:
            # The run folder was deleted. It is made again where there is still something to make it in: a mount
            # point that has gone must not be filled up from below.
            if self._rank_folder.exists() or not self._header.path.parent.is_dir():
                raise
            self._make_folder()
            self._flush_streams()

    def _flush_streams(self) -> None:
        first_error: OSError | None = None
        # Plain numbers go last: whoever reads a run while it grows takes a step that has them for a whole one.
        for quantity in sorted(self._streams, key=lambda name: name == "scalar"):
            try:
                self._streams[quantity].file.flush()
            except OSError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _establish(self) -> None:
        header = self._header
        if self._claim is None:
            self._claim = claim(header)
            self.dropped_steps += self._claim.dropped_steps
            self.first_step = self._claim.first_step
        os.makedirs(self._rank_folder, exist_ok=True)
        self._highest_part, leftovers = recover(self._rank_folder)
        self._make_folder()
        self._established = True
        for quantity in self._highest_part:
            self._compactor.add(self._rank_folder / quantity)
        for part in leftovers:
            self._compactor.add(part)

    def _make_folder(self) -> None:
        os.makedirs(self._rank_folder, exist_ok=True)
        self._write_run("running", None, None)
        self._write_rank()
        write_json(self._rank_folder / run_format.STRUCTURE, self._header.structure, indent=None)
        # What an earlier session has seen stays beside its rows.
        known = read_json(self._rank_folder / run_format.COLLECTIVES, 2, COLLECTIVES) or {}
        earlier = {str(content["target"]): content for content in known.get("collectives") or []}
        self._collectives = {**earlier, **self._collectives}
        self._collectives_are_new = self._collectives.keys() != earlier.keys()

    def _write_collectives(self) -> None:
        write_json(self._rank_folder / run_format.COLLECTIVES, {"collectives": list(self._collectives.values())})
        self._collectives_are_new = False

    def _write_run(self, state: str, error: str | None, ended: float | None) -> None:
        header = self._header
        if header.rank != leading_rank(header):
            return
        assert self._claim is not None
        if not self._run:
            before = self._claim.run or {"id": uuid.uuid4().hex[:12], "started": header.started}
            session = {"first_step": self.first_step, "started": header.started}
            self._run = {
                "format": run_format.FORMAT,
                "id": before["id"],
                "started": before["started"],
                "group": before.get("group", header.group),
                "world_size": header.world_size,
                "mesh": header.mesh,
                "config": header.config,
                "versions": header.versions,
                "command": header.command,
                "host": socket.gethostname(),
                "sessions": [*self._claim.sessions, session],
            }
        write_json(header.path / run_format.RUN, {**self._run, "ended": ended, "state": state, "error": error})

    def _write_rank(self, state: str = "running", error: str | None = None, ended: float | None = None) -> None:
        assert self._claim is not None
        status = {
            "rank": self._header.rank,
            "world_size": self._header.world_size,
            "coordinates": self._header.coordinates,
            **this_process(),
            "state": state,
            "error": error,
            "ended": ended,
            "last_step": self._last_step,
            "session": self._claim.session,
            "opened": self._header.started,
            "parts_off": self._parts_off,
            "dropped_steps": self.dropped_steps + self._num_refused,
        }
        write_json(self._rank_folder / run_format.RANK, status)
