"""Rewrite closed parts from the order of writing to the order of reading, and build their rollups."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from vario.core.process.at_work import at_work, let_forks_pass
from vario.core.process.freed_memory import return_freed_memory
from vario.core.run_files import open_file
from vario.core.run_files.parquet import read_footer, read_whole
from vario.core.run_format import ROLLUPS, current_parts
from vario.store.recovery import PART_DEPTH
from vario.store.retention import Retention
from vario.store.rollups import BUCKET_STEPS, ROLLUP_MIN_ROWS, RollupBuilder, part_number
from vario.store.sorted_file import SortedFile
from vario.store.sorting import ROWS_PER_GROUP, in_target_order

log = logging.getLogger("vario")

MOST_CAUGHT_UP = 64
"""The most parts whose rollups are built after the fact."""

SHARE = 0.1
"""Of one core, for thinning and merging while a run is written."""
FINISH_SECONDS = 2.0
"""The end of a run waits this long for them."""


def compact(stream: Path) -> Any:
    """Rewrite one `part-N.arrow` as `part-N.parquet`, sorted by target, step and micro-step; return its rows."""
    with open_file(stream, PART_DEPTH) as source:
        table = pa.ipc.open_stream(source).read_all()
    table = in_target_order(table)
    file = SortedFile(stream.with_suffix(".parquet"), table.schema, ROWS_PER_GROUP)
    try:
        file.write(table)
        # The stream is deleted once this file has its name, so the rows must be on the disk by then.
        file.finish()
    except OSError:
        file.discard()
        raise
    stream.unlink()
    return table


class Compactor:
    """Compacts parts one by one in its own thread, so that no append waits for it."""

    def __init__(
        self,
        rollup_min_rows: int = ROLLUP_MIN_ROWS,
        bucket_steps: int = BUCKET_STEPS,
        retained: Callable[[Path], Retention] | None = None,
        may_rewrite: Callable[[], bool] = lambda: True,
        share: float = SHARE,
    ) -> None:
        """Rollups are built once a quantity has this many rows.

        `retained` returns what thins and merges the parts in a folder; None: every part stays as it was written.
        `may_rewrite` makes the run one that only readers of merged parts open, and says whether it is. `share`: of the
        time, for thinning and merging.
        """
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._warned = False
        self._rollup_min_rows = rollup_min_rows
        self._bucket_steps = bucket_steps
        self._num_rows: dict[Path, int] = {}
        self._builders: dict[Path, RollupBuilder | None] = {}
        """By folder of parts; None if rollups failed."""
        self._retained = retained
        self._may_rewrite = may_rewrite
        self._share = share
        self._retentions: dict[Path, Retention | None] = {}
        """By folder of parts; None if thinning and merging failed."""
        self._begun = time.monotonic()
        self._spent_seconds = 0.0
        self._finish_by: float | None = None

    def add(self, part: Path) -> None:
        """Queue one part to be compacted; for a folder of parts, queue measuring it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="vario-compaction", daemon=True)
            self._thread.start()
        self._waiting.put(part)

    @property
    def num_waiting(self) -> int:
        """How many parts have not been started yet."""
        return self._waiting.qsize()

    def finish(self) -> None:
        """Wait until all parts are compacted."""
        if self._thread is not None:
            self._finish_by = time.monotonic() + FINISH_SECONDS
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (path := self._waiting.get()) is not None:
            with at_work():
                if path.suffix == ".arrow":
                    self._compact(path)
                    # The next table comes thousands of steps later.
                    return_freed_memory()
                else:
                    self._guarded(path, self._begin)
                self._make_all_smaller()
        for folder, builder in self._builders.items():
            if builder is not None:
                with at_work():
                    self._guarded(folder, lambda _: builder.finish())  # noqa: B023 - called at once, as above
        for folder in list(self._num_rows):
            with at_work():
                self._make_smaller(folder)
                if (retention := self._retentions.get(folder)) is not None:
                    self._retain(folder, retention.finish)

    def _compact(self, path: Path) -> None:
        try:
            table = compact(path)
        except (OSError, pa.ArrowException) as error:
            # The part stays readable as a stream, only more slowly.
            if not self._warned:
                log.warning("%s: could not be compacted (%s); it stays as it is and is still readable", path, error)
            self._warned = True
            return
        self._guarded(path.parent, lambda folder: self._roll_up(folder, part_number(path), table))

    def _guarded(self, folder: Path, action: Callable[[Path], None]) -> None:
        """Run a task on the rollups of a quantity; if it fails, its rows are read without them."""
        try:
            action(folder)
        except Exception as error:  # noqa: BLE001 - a statistic of another package may raise anything
            self._builders[folder] = None
            log.warning("%s: no rollups from now on (%s); all rows are kept, but reading them is slower", folder, error)

    def _make_all_smaller(self) -> None:
        """Thin and merge old parts of each quantity in turn, within its share of the time."""
        for folder in list(self._num_rows):
            if self._has_time():
                self._make_smaller(folder)
                # The next turn begins with those that had none in this one.
                self._num_rows[folder] = self._num_rows.pop(folder)

    def _make_smaller(self, folder: Path) -> None:
        if self._retained is None:
            return
        if folder not in self._retentions:
            self._retain(folder, lambda: None)
        builder = self._builders.get(folder)
        if builder is None and (folder.parent / ROLLUPS / folder.name).is_dir():
            # Nothing new came, or rollups failed: which parts they stand for is not known.
            return
        while (retention := self._retentions.get(folder)) is not None and self._has_time():
            begun = time.thread_time()
            is_done = not self._retain(folder, lambda: retention.step(builder, self._may_rewrite))
            self._spent_seconds += time.thread_time() - begun
            let_forks_pass()
            if is_done:
                break

    def _has_time(self) -> bool:
        now = time.monotonic()
        if self._finish_by is not None:
            return now < self._finish_by
        return self._spent_seconds <= self._share * (now - self._begun)

    def _retain(self, folder: Path, action: Callable[[], Any]) -> Any:
        """Run a task on the parts of a quantity; if it fails, they stay as they are."""
        try:
            if folder not in self._retentions and self._retained is not None:
                self._retentions[folder] = self._retained(folder)
            return action()
        except Exception as error:  # noqa: BLE001 - a damaged part may raise anything
            self._retentions[folder] = None
            log.warning("%s: older rows are not thinned or merged from now on (%s); no row is lost", folder, error)
            return False

    def _begin(self, folder: Path) -> None:
        """Find out how much earlier sessions recorded, if it matters."""
        num_rows = 0
        if (folder.parent / ROLLUPS / folder.name).is_dir():
            num_rows = self._rollup_min_rows
        for path in folder.glob("part-*.parquet"):
            if num_rows >= self._rollup_min_rows:
                break
            num_rows += int(read_footer(path, PART_DEPTH).num_rows)
        self._num_rows[folder] = num_rows

    def _roll_up(self, folder: Path, number: int, table: Any) -> None:
        self._num_rows[folder] = self._num_rows.get(folder, 0) + int(table.num_rows)
        if self._num_rows[folder] < self._rollup_min_rows:
            return
        if folder not in self._builders:
            self._catch_up(folder)
        elif (builder := self._builders[folder]) is not None:
            builder.add(number, session_of(table), table)

    def _catch_up(self, folder: Path) -> None:
        """Build the rollups of all parts without any: the first of a run, or those a dead writer did not finish."""
        builder = self._builders[folder] = RollupBuilder(folder.parent, folder.name, self._bucket_steps)
        current = [(first, last, folder / name) for first, last, name in current_parts(os.listdir(folder))]
        parts = [part for part in current if part[2].suffix == ".parquet" and not builder.covers(part[0])]
        # This many parts come from a version without rollups: reading them again would keep a training process busy.
        for first, last, path in parts if len(parts) <= MOST_CAUGHT_UP else ():
            table = read_whole(path, PART_DEPTH).unify_dictionaries().combine_chunks()
            builder.add(first, session_of(table), table, last)


def session_of(table: Any) -> int:
    """Return the session that wrote a table."""
    return int((table.schema.metadata or {}).get(b"vario.session", b"0"))
