"""Reads msprobe's CSV files block by block, or step by step in order, for runs of any length.

Invalid lines are skipped one by one, with a remark: a truncated last line loses only itself.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import feather

from vario.compat.msprobe.csv_folders import CsvFile
from vario.compat.msprobe.wording import counted

Remark = Callable[[str], None]
"""Called with a sentence about something that was skipped."""

KEYS = ("vpp_stage", "name", "step")
NO_MICRO_STEP = -1
"""The value of `micro_step` for files without that column."""

CHUNK_BYTES = 8 << 20
"""How much CSV is processed at a time."""


@dataclass(frozen=True)
class StepRows:
    """All rows of one kind at one step."""

    step: int
    rows: Any
    """A pyarrow Table of one chunk: the keys, and the requested statistics and texts that exist."""
    same_targets: bool
    """Whether the rows are of the same targets, in the same order, as in the previous step."""
    time: float
    """Unix seconds at which the newest of the files was last written."""
    num_bytes_read: int
    """Bytes read of all files so far."""
    num_replaced: int
    """Rows replaced by a later row of the same target."""
    is_shared: bool
    """Whether several folders have rows of this step."""

    def targets(self) -> Iterator[tuple[int, str, int]]:
        """Stage, name and micro-step of each row."""
        columns = (self.rows.column(name).to_pylist() for name in ("vpp_stage", "name", "micro_step"))
        return zip(*columns, strict=True)

    def values(self, statistics: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return a column per statistic; NaN if a file has no such number."""
        return floats(self.rows, statistics)

    def known(self, statistics: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return whether a file has such a value, which may be `nan`; laid out like `values`."""
        known = np.zeros((self.rows.num_rows, len(statistics)), np.bool_)
        for position, name in enumerate(statistics):
            if name in self.rows.column_names:
                known[:, position] = self.rows.column(name).is_valid().to_numpy()
        return known


@dataclass(frozen=True)
class Reading:
    """What to read of each file."""

    statistics: Sequence[str]
    """Columns of numbers."""
    texts: Sequence[str] = ()
    """Columns of text."""
    chunk_bytes: int = CHUNK_BYTES

    def blocks(self, file: CsvFile, remark: Remark) -> Iterator[Any]:
        """Yield the rows of one file as pyarrow Tables, in file order."""
        with file.path.open("rb") as source:
            header, line = _read_header(file, source, remark)
            rest = b""
            while header and (piece := source.read(self.chunk_bytes)):
                block = rest + piece
                end = block.rfind(b"\n") + 1
                rest = block[end:]
                if end:
                    table = self._parse(block[:end], header, f"{file.path}", line, remark)
                    line += block.count(b"\n", 0, end)
                    if table.num_rows:
                        yield table
            if rest:
                # The writer was stopped: even if the columns are complete, a number may be truncated.
                remark(f"{file.path}:{line}: the last line is incomplete and skipped: {_shown(rest)}")

    def steps(self, files: Sequence[CsvFile], remark: Remark) -> Iterator[StepRows]:
        """Yield the rows of one kind and rank step by step in order; of duplicate rows, the later one."""
        previous: Any = None
        num_bytes_read = 0
        for chunk in _chunks(files):
            num_bytes_read += sum(file.num_bytes for file in chunk)
            newest = max(file.path.stat().st_mtime for file in chunk)
            for table in self._windows(chunk, remark):
                for step, whole in _by_step(table):
                    rows, same = whole, previous is not None and _targets_equal(previous, whole)
                    if not same:
                        rows = _latest(whole)
                        same = previous is not None and rows is not whole and _targets_equal(previous, rows)
                    previous = rows
                    num_replaced = whole.num_rows - rows.num_rows
                    yield StepRows(step, rows, same, newest, num_bytes_read, num_replaced, _is_shared(whole))

    def _windows(self, files: Sequence[CsvFile], remark: Remark) -> Iterator[Any]:
        """The rows of some files, oldest first, in tables of complete steps, ascending."""
        ordered = sorted(files, key=lambda file: file.age)
        if ordered[0].age[0] == ordered[-1].age[0]:
            blocks = (block for file in ordered for block in self.blocks(file, remark))
        else:
            blocks = (_from_folder(file, block) for file in ordered for block in self.blocks(file, remark))
        if sum(file.num_bytes for file in files) <= self.chunk_bytes:
            tables = list(blocks)
            if tables:
                yield _joined(tables)
            return
        # Too much for memory: sort into ranges of steps on disk first.
        with tempfile.TemporaryDirectory(prefix="vario-") as folder:
            width = 0
            ranges: dict[int, list[Path]] = {}
            for block in blocks:
                steps = block.column("step").to_numpy()
                width = width or max(1, len(np.unique(steps)) // 2)
                for number in np.unique(steps // width).tolist():
                    part = Path(folder) / f"{number}-{len(ranges.setdefault(number, []))}"
                    chosen = block.take(pa.array(np.flatnonzero(steps // width == number)))
                    feather.write_feather(chosen, str(part), compression="uncompressed")
                    ranges[number].append(part)
            for number in sorted(ranges):
                yield _joined([feather.read_table(str(part), memory_map=False) for part in ranges[number]])

    def _parse(self, block: bytes, header: list[str], path: str, first_line: int, remark: Remark) -> Any:
        damaged: list[tuple[int, bytes]] = []

        def note(row: Any) -> Literal["skip"]:
            damaged.append((first_line + row.number - 1, row.text.encode()))
            return "skip"

        try:
            table = self._read(block, header, note)
        except pa.ArrowInvalid:
            damaged.clear()
            lines = block.splitlines(keepends=True)
            understood = [self._is_understood(line, header) for line in lines]
            for nth, line in enumerate(lines):
                if not understood[nth]:
                    damaged.append((first_line + nth, line))
            table = self._read(b"".join(itertools.compress(lines, understood)), header, note)
        if damaged:
            number, text = damaged[0]
            others, verb = "", "is"
            if len(damaged) > 1:
                others, verb = f" and {counted(len(damaged) - 1, 'further line')}", "are"
            remark(f"{path}:{number}: this line{others} cannot be parsed and {verb} skipped: {_shown(text)}")
        return table

    def _read(self, block: bytes, header: list[str], note: Callable[[Any], Literal["skip"]]) -> Any:
        types: dict[str, Any] = {name: pa.int64() for name in ("vpp_stage", "step", "micro_step")}
        types |= dict.fromkeys(["name", *self.texts], pa.string()) | dict.fromkeys(self.statistics, pa.float64())
        wanted = [name for name in (*KEYS, "micro_step", *self.statistics, *self.texts) if name in header]
        if not block:
            return pa.table({name: pa.array([], types[name]) for name in [*wanted, "micro_step"]})
        table = arrow_csv.read_csv(
            io.BytesIO(block),
            read_options=arrow_csv.ReadOptions(column_names=header, use_threads=False, block_size=len(block) + 1),
            parse_options=arrow_csv.ParseOptions(invalid_row_handler=note),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: types[name] for name in wanted},
                include_columns=wanted,
                # The text `nan` is a number; only an empty cell is none.
                null_values=[""],
            ),
        )
        if "micro_step" not in header:
            table = table.append_column("micro_step", pa.array(np.full(table.num_rows, NO_MICRO_STEP)))
        return table

    def _is_understood(self, line: bytes, header: list[str]) -> bool:
        try:
            row = dict(zip(header, next(csv.reader([line.decode()]), []), strict=True))
            for name in ("vpp_stage", "step", "micro_step"):
                int(row.get(name, "0"))
            for name in self.statistics:
                float(row.get(name) or "nan")
        except ValueError:  # also for invalid text, and for rows that are too long or too short
            return False
        return True


def read_header(file: CsvFile) -> list[str]:
    """The names of a file's columns."""
    with file.path.open("rb") as source:
        return _read_header(file, source, lambda text: None)[0]


def floats(table: Any, columns: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return columns of a table as one array; NaN if there is no such column or number."""
    values = np.full((table.num_rows, len(columns)), np.nan)
    for position, name in enumerate(columns):
        if name in table.column_names:
            values[:, position] = table.column(name).to_numpy()
    return values


def _read_header(file: CsvFile, source: io.BufferedReader, remark: Remark) -> tuple[list[str], int]:
    """The columns, and the number of the line that is read next."""
    first = source.readline()
    header = _cells(first)
    if set(KEYS) <= set(header) and first.endswith(b"\n"):
        return header, 2
    if file.age[1]:  # continuation files have no header
        source.seek(0)
        whole = re.sub(r"_part_\d+\.csv$", ".csv", str(file.path))
        if Path(whole).is_file():
            with open(whole, "rb") as beginning:
                return _cells(beginning.readline()), 1
    remark(f"{file.path}:1: no header with the columns {', '.join(KEYS)}; the file is skipped")
    return [], 1


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode("utf-8-sig", errors="replace").strip()]), [])


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip()
    return repr(text if len(text) <= 100 else text[:100] + "...")


def _chunks(files: Sequence[CsvFile]) -> Iterator[list[CsvFile]]:
    """Files, sorted by their first step, in groups that share no step with each other."""
    chunk: list[CsvFile] = []
    last_step = -1
    for file in files:
        if chunk and file.first_step > last_step:
            yield chunk
            chunk = []
        chunk.append(file)
        last_step = max(last_step, file.last_step)
    if chunk:
        yield chunk


def _joined(tables: Sequence[Any]) -> Any:
    return pa.concat_tables(tables, promote_options="default").combine_chunks()


def _by_step(table: Any) -> Iterator[tuple[int, Any]]:
    steps = table.column("step").to_numpy()
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        table, steps = table.take(pa.array(order)).combine_chunks(), steps[order]
    starts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for start, end in itertools.pairwise(starts):
        yield int(steps[start]), table.slice(start, end - start)


def _from_folder(file: CsvFile, block: Any) -> Any:
    return block.append_column("folder", pa.array(np.full(block.num_rows, file.age[0])))


def _is_shared(rows: Any) -> bool:
    return "folder" in rows.column_names and len(np.unique(rows.column("folder").to_numpy())) > 1


def _targets_equal(one: Any, other: Any) -> bool:
    return all(one.column(name).equals(other.column(name)) for name in ("name", "micro_step", "vpp_stage"))


def _latest(rows: Any) -> Any:
    """The rows without those that a later row of the same target replaces; the same table if there are none."""
    names = rows.column("name").combine_chunks().dictionary_encode()
    keys = np.stack(
        [
            names.indices.to_numpy(),
            rows.column("vpp_stage").to_numpy(),
            rows.column("micro_step").to_numpy(),
        ]
    )
    _, last = np.unique(keys[:, ::-1], axis=1, return_index=True)
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(rows.num_rows - 1 - last))).combine_chunks()
