"""Parquet files sorted by target, so that one target is in one place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vario.core.process.at_work import let_forks_pass
from vario.core.run_files import no_links
from vario.store.encoding import arrow_column, whole_array


class SortedFile:
    """Writes tables that arrive in the order of their targets into one file, which appears whole or not at all."""

    def __init__(self, path: Path, schema: Any, rows_per_group: int, ranges_of: list[str] | None = None) -> None:
        """`ranges_of`: the columns whose minimum and maximum the footer has; None: all."""
        self.path = path
        self._unfinished = path.with_name(path.name + ".tmp")
        self._rows_per_group = rows_per_group
        doubles = [field.name for field in schema if pa.types.is_floating(field.type)]
        whole = [field.name for field in schema if pa.types.is_integer(field.type)]
        self._file = open(self._unfinished, "wb", opener=no_links)  # noqa: SIM115 - closed by finish or discard
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            use_dictionary=["target"],  # type: ignore[arg-type]  # the stubs know only bool
            column_encoding={
                **dict.fromkeys(doubles, "BYTE_STREAM_SPLIT"),
                **dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
            },
            write_page_index=True,
            write_statistics=True if ranges_of is None else ranges_of,
        )

    def write(self, table: Any) -> None:
        """Append rows."""
        position = table.schema.get_field_index("target")
        target = table.column("target").combine_chunks()
        codes = whole_array(target.indices, np.int32)
        for start in range(0, table.num_rows, self._rows_per_group):
            # Every row group has its own dictionary: with all names it would be larger than the rows.
            chosen = codes[start : start + self._rows_per_group]
            lowest, highest = int(chosen[0]), int(chosen[-1])
            names = target.dictionary.slice(lowest, highest - lowest + 1)
            column = pa.DictionaryArray.from_arrays(arrow_column(chosen - np.int32(lowest)), names)
            group = table.slice(start, self._rows_per_group).set_column(position, table.schema.field(position), column)
            self._writer.write_table(group, row_group_size=self._rows_per_group)
            let_forks_pass()

    def finish(self) -> Path:
        """Give the file its name, once all of it is on the disk."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._unfinished, self.path)
        return self.path

    def discard(self) -> None:
        """Remove a file that could not be finished."""
        try:
            self._writer.close()
            self._file.close()
        except (OSError, pa.ArrowException):
            pass  # a full disk: what matters is that the name is gone
        self._unfinished.unlink(missing_ok=True)
