"""The run store: each rank's records as Arrow streams that become Parquet parts.

Every row is in the kernel when `write` returns, so killing the process loses nothing. `docs/run-format.md` describes
the files.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vario.core import run_format
from vario.core.elements.bins import COUNTED
from vario.core.elements.bins import QUANTITY as DISTRIBUTION
from vario.core.elements.channels import QUANTITY as CHANNEL
from vario.core.errors import RunTaken
from vario.core.old_names import QUANTITIES
from vario.core.parameter_list import json_texts
from vario.core.process.processes import this_process
from vario.core.records import COLUMNS, Frame, StepRecord
from vario.core.retention_options import tiers_of
from vario.core.run_files.shapes import COLLECTIVES, read_json
from vario.core.run_header import RunHeader
from vario.core.text import size
from vario.sinks import PartsOff
from vario.statistics import columns_needed
from vario.store.compaction import Compactor
from vario.store.encoding import StreamEncoder, in_batches
from vario.store.folder import Claim, claim, write_json, write_texts
from vario.store.holding import has_lost
from vario.store.live_stream import LiveStream
from vario.store.recovery import part_path, recover
from vario.store.retention import Retention
from vario.store.rollups import BUCKET_STEPS, ROLLUP_MIN_ROWS
from vario.store.run_record import RunRecord

log = logging.getLogger("vario")

STATUS_SECONDS = 1.0
"""`rank.json` is rewritten at most this often."""
LONG_STEPS = 2000
"""After this many steps some rank of several may have parts to merge."""


class _Stream:
    """The live stream of one quantity."""

    def __init__(
        self, folder: Path, quantity: str, part: int, session: int, columns: frozenset[str], has_detail: bool
    ) -> None:
        self.encoder = StreamEncoder(quantity, part, session, columns, has_detail)
        self.file = LiveStream(folder / f"{quantity}{run_format.LIVE}", self.encoder.opening)
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
        rollup_min_rows: int = ROLLUP_MIN_ROWS,
        bucket_steps: int = BUCKET_STEPS,
    ) -> None:
        """Nothing is written yet.

        A part closes at `part_bytes`, or after `part_steps` steps unless it is still smaller than `small_part_bytes`: a
        run with few targets would leave thousands of tiny files. At most about `backlog_bytes` wait in memory if the
        disk cannot be written. A quantity with `rollup_min_rows` rows gets rollups, of `bucket_steps` steps each once
        it is long.
        """
        self.first_step = 0
        self.dropped_steps = 0
        self._part_steps = part_steps
        self._part_bytes = part_bytes
        self._small_part_bytes = small_part_bytes
        self._backlog_bytes = backlog_bytes
        self._streams: dict[str, _Stream] = {}
        self._highest_part: dict[str, int] = {}
        self._stored: dict[str, str] = {}
        """Quantities that an earlier session stored under another name."""
        self._rollup_options = rollup_min_rows, bucket_steps
        self._compactor = Compactor()
        self._retains = False
        self._num_steps = 0
        self._claim: Claim | None = None
        self._established = self._is_lost = False
        self._run: RunRecord | None = None
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
        """Take the folder, or resume the run in it; raises RunError if it must not be written."""
        self._header = header
        self._rank_folder = header.path / f"rank{header.rank}"
        statistics = header.config.get("statistics")
        self._columns = frozenset(COLUMNS) if statistics is None else columns_needed(statistics)
        self.first_step = header.first_step or 0
        # Runs made by other means than a training say nothing of it: they stay as they were written.
        self._retains = header.config.get("retention") is not None
        retained = self._retention if self._retains else None
        self._compactor = Compactor(*self._rollup_options, retained, self._may_rewrite)
        self._attempt("record", self._establish)

    def write(self, record: StepRecord) -> None:
        """Append one step; what the disk does not take waits in memory and is retried with the next step."""
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
            self._check_holding()  # a file in the way may belong to another process
            return
        self._waiting_steps.clear()
        if self._collectives_are_new:
            self._attempt("write collectives.json", self._write_collectives)
        for quantity, stream in list(self._streams.items()):
            if self._is_due(stream):
                self._attempt("close a part", lambda quantity=quantity: self._rotate(quantity))  # type: ignore[misc]
        self._num_steps += len({record.step for record in records})
        if self._retains and self._num_steps >= LONG_STEPS and self._header.world_size > 1 and self._run is not None:
            # Other ranks cannot say it themselves: one process writes `run.json`.
            self._attempt("write run.json", self._run.announce_merged_parts)
        now = records[-1].scalars.time
        if abs(now - self._status_time) >= STATUS_SECONDS:
            self._status_time = now
            self._check_holding()
            self._attempt("write rank.json", self._write_rank)
        if self._run is not None and self._run.has_new_params:
            self._attempt("write run.json", lambda: self._write_run("running", None, None))

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Show failures in `rank.json` from now on."""
        self._parts_off = list(parts_off)
        self._num_refused = num_refused
        if self._established:
            self._attempt("write rank.json", self._write_rank)

    def close(self, state: str, error: str | None) -> None:
        """Close and compact all parts and record how the run ended."""
        if self._is_lost:
            return
        # Before compaction: the order of these times shows which of several ranks failed first.
        ended = time.time()
        if self._attempt("record", self._flush):
            self._waiting_steps.clear()
        elif self._waiting_steps:
            self.dropped_steps += len(self._waiting_steps)
            log.warning("%s: the last %d steps were not recorded", self._header.path, len(self._waiting_steps))
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
                    frames.setdefault(self._stored.get(frame.quantity, frame.quantity), []).append(frame)
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
            chosen = self._header.config.get("quantities") or ()
            has_detail = quantity == CHANNEL or (quantity in COUNTED and DISTRIBUTION in chosen)
            stream = _Stream(self._rank_folder, quantity, part, self._claim.session, self._columns, has_detail)
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

    def _retention(self, folder: Path) -> Retention:
        assert self._claim is not None
        first_steps = [*(int(session["first_step"]) for session in self._claim.sessions), self.first_step]
        tiers = tiers_of(self._header.config["retention"], QUANTITIES.get(folder.name, folder.name))
        return Retention(folder, tiers, first_steps, self._claim.session)

    def _may_rewrite(self) -> bool:
        """Whether readers that do not know merged parts refuse this run. Any thread calls it."""
        if self._run is None or self._is_lost or self._claim is None:
            return False
        return not has_lost(self._rank_folder, self._claim.number) and self._run.allow_merged_parts()

    def _waiting_bytes(self) -> int:
        unopened = sum(frame.summaries.nbytes for record in self._unopened for frame in record.frames)
        return unopened + sum(stream.file.pending_bytes for stream in self._streams.values())

    def _check_holding(self) -> None:
        """Raise if another process has resumed this run, which can happen to a process that slept for long."""
        if self._claim is not None and self._established and has_lost(self._rank_folder, self._claim.number):
            self._is_lost = True
            raise RunTaken(f"{self._header.path}: another process has taken over this run; this one stops writing.")

    # -- the disk ------------------------------------------------------------------------------------------------

    def _attempt(self, task: str, action: Callable[[], object]) -> bool:
        """Run a task on the disk; log once when it fails, and once when recording works again."""
        try:
            action()
        except OSError as error:
            first = not self._warned
            self._warned.add(task)
            if first:
                log.warning(
                    "%s: cannot %s: %s. Training continues; up to %s of steps are kept in memory and retried with "
                    "each step; steps beyond that are dropped and counted.",
                    self._header.path,
                    task,
                    error,
                    size(self._backlog_bytes),
                )
            return False
        if task in self._warned:
            self._warned.clear()
            log.info("%s: can %s again; %d steps dropped", self._header.path, task, self.dropped_steps)
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
            # The run folder was deleted. Recreate it only if its parent exists: a lost mount point must not be filled
            # from below.
            if self._rank_folder.exists() or not self._header.path.parent.is_dir():
                raise
            self._make_folder()
            self._flush_streams()

    def _flush_streams(self) -> None:
        first_error: OSError | None = None
        # Plain numbers go last: a reader of a growing run takes a step that has them to be complete.
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
        self._stored = {new: old for old, new in QUANTITIES.items() if old in self._highest_part}
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
        # No indents: they are for people, and take several times as long.
        write_texts(self._rank_folder / run_format.STRUCTURE, json_texts(self._header.structure))
        # What an earlier session described stays beside its rows.
        known = read_json(self._rank_folder / run_format.COLLECTIVES, 2, COLLECTIVES) or {}
        earlier = {str(content["target"]): content for content in known.get("collectives") or []}
        self._collectives = {**earlier, **self._collectives}
        self._collectives_are_new = self._collectives.keys() != earlier.keys()

    def _write_collectives(self) -> None:
        write_json(self._rank_folder / run_format.COLLECTIVES, {"collectives": list(self._collectives.values())})
        self._collectives_are_new = False

    def _write_run(self, state: str, error: str | None, ended: float | None) -> None:
        if self._run is None:
            assert self._claim is not None
            self._run = RunRecord(self._header, self._claim, self.first_step)
        self._run.write(state, error, ended)

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
