"""Rewrite closed parts from the order of writing to the order of reading, and build their rollups."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.process.at_work import at_work
from vario.core.process.freed_memory import return_freed_memory
from vario.core.run_files import open_file
from vario.core.run_files.columns import numpy_kind
from vario.core.run_files.parquet import read_footer, read_whole
from vario.store.encoding import arrow_column, arrow_strings, whole_array
from vario.store.recovery import PART_DEPTH
from vario.store.rollups import BUCKET_STEPS, ROLLUP_MIN_ROWS, RollupBuilder, part_number
from vario.store.sorted_file import SortedFile

log = logging.getLogger("vario")

ROWS_PER_GROUP = 8192
"""Reading one series decodes one such group per part; smaller groups compress worse and enlarge the footer."""

MOST_CAUGHT_UP = 64
"""The most parts whose rollups are built after the fact."""


def compact(stream: Path) -> Any:
    """Rewrite one `part-N.arrow` as `part-N.parquet`, sorted by target, step and micro-step; return its rows."""
    with open_file(stream, PART_DEPTH) as source:
        table = pa.ipc.open_stream(source).read_all()
    table = _sorted(table)
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


def _sorted(table: Any) -> Any:
    table = table.unify_dictionaries().combine_chunks()
    target = table.column("target").combine_chunks()
    names = target.dictionary.to_pylist()
    alphabetical = sorted(range(len(names)), key=names.__getitem__)
    rank_of_code = np.empty(len(names), np.int32)
    rank_of_code[alphabetical] = np.arange(len(names), dtype=np.int32)
    codes = rank_of_code[whole_array(target.indices, np.int32)]
    keys = [codes, whole_array(table.column("step").combine_chunks(), np.int64)]
    if "micro_step" in table.column_names:
        keys.append(whole_array(table.column("micro_step").combine_chunks(), np.int32))
    ordered_names = arrow_strings([names[code] for code in alphabetical])
    ordered = pa.DictionaryArray.from_arrays(arrow_column(codes), ordered_names)
    position = table.schema.get_field_index("target")
    table = table.set_column(position, table.schema.field(position), ordered)
    num = _even_frame(keys)
    if num is None:
        return table.take(arrow_column(np.lexsort(keys[::-1])))
    return _turned(table, np.argsort(codes[:num]).astype(np.int64), len(codes) // num)


def _even_frame(keys: list[Any]) -> int | None:
    """Return the rows per frame if all frames have the same targets and are in step order; otherwise None."""
    codes, steps = keys[0], keys[1]
    if not len(codes):
        return None
    # The first frame ends where the step changes.
    changes = np.flatnonzero(np.logical_or.reduce([key[1:] != key[:-1] for key in keys[1:]]))
    num = int(changes[0]) + 1 if len(changes) else len(codes)
    if len(codes) % num or len(np.unique(codes[:num])) < num:
        return None
    moments = [key.reshape(-1, num) for key in keys]
    is_even = (moments[0] == moments[0][0]).all() and all((key == key[:, :1]).all() for key in moments[1:])
    if not is_even:
        return None
    firsts = steps[::num] if len(keys) == 2 else steps[::num] * (1 + int(keys[2].max())) + keys[2][::num]
    return num if (np.diff(firsts) > 0).all() else None


def _turned(table: Any, order: npt.NDArray[np.int64], num_frames: int) -> Any:
    """Reorder rows by frame into rows by target: sequential reads, several times as fast as picking each row."""
    rows: Any = None
    columns = []
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        values = column.indices if name == "target" else column
        if values.null_count or pa.types.is_binary(values.type):
            if rows is None:
                rows = arrow_column((order[:, None] + len(order) * np.arange(num_frames)[None, :]).reshape(-1))
            columns.append(column.take(rows))
            continue
        kind = numpy_kind(values.type)
        turned = np.ascontiguousarray(whole_array(values, kind).reshape(num_frames, -1)[:, order].T).reshape(-1)
        found = arrow_column(turned)
        columns.append(pa.DictionaryArray.from_arrays(found, column.dictionary) if name == "target" else found)
    return pa.Table.from_arrays(columns, schema=table.schema)


class Compactor:
    """Compacts parts one by one in its own thread, so that no append waits for it."""

    def __init__(self, rollup_min_rows: int = ROLLUP_MIN_ROWS, bucket_steps: int = BUCKET_STEPS) -> None:
        """Rollups are built once a quantity has this many rows."""
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._warned = False
        self._rollup_min_rows = rollup_min_rows
        self._bucket_steps = bucket_steps
        self._num_rows: dict[Path, int] = {}
        self._builders: dict[Path, RollupBuilder | None] = {}
        """By folder of parts; None if rollups failed."""

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
        for folder, builder in self._builders.items():
            if builder is not None:
                with at_work():
                    self._guarded(folder, lambda _: builder.finish())  # noqa: B023 - called at once, as above

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

    def _begin(self, folder: Path) -> None:
        """Find out how much earlier sessions recorded, if it matters."""
        num_rows = 0
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
            builder.add(number, _session(table), table)

    def _catch_up(self, folder: Path) -> None:
        """Build the rollups of all parts without any: the first of a run, or those a dead writer did not finish."""
        builder = self._builders[folder] = RollupBuilder(folder.parent, folder.name, self._bucket_steps)
        paths = sorted(path for path in folder.glob("part-*.parquet") if not builder.covers(part_number(path)))
        # This many parts come from a version without rollups: reading them again would keep a training process busy.
        for path in paths if len(paths) <= MOST_CAUGHT_UP else ():
            table = read_whole(path, PART_DEPTH).unify_dictionaries().combine_chunks()
            builder.add(part_number(path), _session(table), table)


def _session(table: Any) -> int:
    return int((table.schema.metadata or {}).get(b"vario.session", b"0"))
