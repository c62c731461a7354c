"""Closed parts, from the order they were written in to the order they are read in."""

from __future__ import annotations

import logging
import os
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vario.sinks.encoding import arrow_column, arrow_strings, whole_array

log = logging.getLogger("vario")

ROWS_PER_GROUP = 8192
"""Reading one series decodes one such group per part; smaller ones compress worse and swell the footer."""


def compact(stream: Path) -> Path:
    """Rewrite one `part-N.arrow` as `part-N.parquet`, sorted by target, step and micro-step."""
    finished = stream.with_suffix(".parquet")
    unfinished = stream.with_suffix(".parquet.tmp")
    with pa.OSFile(str(stream), "rb") as source:
        table = pa.ipc.open_stream(source).read_all()
    table = _sorted(table)
    doubles = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    try:
        with open(unfinished, "wb") as file:
            pq.write_table(
                table,
                file,
                row_group_size=ROWS_PER_GROUP,
                compression="zstd",
                use_dictionary=["target"],  # type: ignore[arg-type]  # the stubs know only bool
                column_encoding={
                    **dict.fromkeys(doubles, "BYTE_STREAM_SPLIT"),
                    **dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
                },
                write_page_index=True,
            )
            # The stream goes once this file has its name, so the rows must be on the disk by then.
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, finished)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    stream.unlink()
    return finished


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
    return table.take(arrow_column(np.lexsort(keys[::-1])))


class Compactor:
    """Compacts parts one after another in a thread of its own, so that no append ever waits for it."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._warned = False

    def add(self, stream: Path) -> None:
        """Have one part compacted soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="vario-compaction", daemon=True)
            self._thread.start()
        self._waiting.put(stream)

    def finish(self) -> None:
        """Wait until all parts are compacted."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (stream := self._waiting.get()) is not None:
            try:
                compact(stream)
            except (OSError, pa.ArrowException) as error:
                # The part stays readable as a stream; only reading it is slower.
                if not self._warned:
                    log.warning("%s: could not be compacted (%s); it stays as it is and can be read", stream, error)
                self._warned = True
