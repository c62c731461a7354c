"""msprobe's CSV files: `grad_reduced_0-0.csv` and its siblings, appended to at each step."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vario.compat.msprobe.blocks import Block
from vario.compat.msprobe.config import FORM_OPS
from vario.core.records import TensorSpec
from vario.core.text import size
from vario.statistics import Values

log = logging.getLogger("vario")

MAX_WAITING_CHARACTERS = 64 << 20
"""The most characters to keep in memory if the disk cannot be written."""


class CsvFiles:
    """Writes one rank's folder."""

    def __init__(self, folder: Path, ndigits: int, steps_per_file: int) -> None:
        self.folder = folder
        self._ndigits = ndigits
        self._steps_per_file = steps_per_file
        self._waiting: dict[Path, list[str]] = {}
        self._num_waiting = 0
        self._has_warned = False
        self._rewound: dict[Path, None] | None = None
        self._first_step = 0
        self._last: dict[str, tuple[str, str, Path]] = {}
        """Per prefix: the name, the header and the file of what was written last."""

    def rewind_to(self, step: int) -> None:
        """Resume from that step in this folder: drop rows after it."""
        self._rewound = {}
        self._first_step = step

    def write(self, block: Block, step: int) -> None:
        """Append one block; what cannot be written is retried with the next."""
        micro = ["micro_step"] if block.rows.micro_steps is not None else []
        text = block_text(block, step, self._ndigits)
        if self._num_waiting + len(text) > MAX_WAITING_CHARACTERS:
            return
        self._num_waiting += len(text)
        header = csv_text(iter([["vpp_stage", "name", "step", *micro, *block.rows.columns]]))
        self._waiting.setdefault(self._path(block.rows.prefix, step, header), [header]).append(text)

    def _path(self, prefix: str, step: int, header: str) -> Path:
        """The file for a step's rows: a new part if the columns have changed."""
        first = step // self._steps_per_file * self._steps_per_file
        name = f"{prefix}_{first}-{first + self._steps_per_file - 1}"
        last = self._last.get(prefix)
        if last is not None and last[:2] == (name, header):
            return last[2]
        part, path = 0, self.folder / f"{name}.csv"
        while self._header(path) not in ("", header):
            part += 1
            path = self.folder / f"{name}_part_{part}.csv"
        self._last[prefix] = name, header, path
        return path

    def _header(self, path: Path) -> str:
        """The first line of a file, or of what is waiting to be written; empty if there is neither."""
        if path in self._waiting:
            return self._waiting[path][0]
        try:
            with path.open(encoding="utf8", newline="") as file:
                return file.readline()
        except OSError:
            return ""

    def flush(self) -> None:
        """Write everything; warn once if that fails."""
        try:
            for path in list(self._waiting):
                self._append(path)
                del self._waiting[path]
            self._num_waiting = 0
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s: cannot be written: %s. Training continues; up to %s are kept in memory and retried.",
                    self.folder,
                    error,
                    size(MAX_WAITING_CHARACTERS),
                )

    def close(self) -> None:
        """Write everything, and report what could not be written."""
        self.flush()
        if self._waiting:
            num_rows = sum(text.count("\n") for _, *texts in self._waiting.values() for text in texts)
            log.warning("%s: %d rows could not be written and are lost", self.folder, num_rows)

    def _append(self, path: Path) -> None:
        os.makedirs(self.folder, exist_ok=True)
        if self._rewound is not None and path not in self._rewound:
            self._rewound[path] = None
            drop_from_step(path, self._first_step)
        header, *texts = self._waiting[path]
        with path.open("ab", buffering=0) as file:
            size_before = file.tell()
            rest = "".join(texts if size_before else [header, *texts]).encode("utf8")
            try:
                # One write for all: after a kill the file is unchanged, or has complete rows.
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                # A full disk accepted a part: retry all of it.
                file.truncate(size_before)
                raise


def drop_from_step(path: Path, first_step: int) -> None:
    """Remove the rows of that step and later ones from a file, and an incomplete last line."""
    if not path.exists():
        return
    text = path.read_bytes().decode("utf8", errors="replace")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if not rows or "step" not in rows[0]:
        return
    at, is_torn = rows[0].index("step"), not text.endswith("\n")
    whole = rows[:-1] if is_torn else rows
    kept = [row for nth, row in enumerate(whole) if nth == 0 or _is_before(row, at, first_step)]
    if len(kept) < len(rows):
        unfinished = path.with_name(path.name + ".tmp")
        unfinished.write_text(csv_text(iter(kept)), encoding="utf8")
        os.replace(unfinished, path)


def _is_before(row: list[str], at: int, first_step: int) -> bool:
    return at < len(row) and row[at].isdigit() and int(row[at]) < first_step


def block_text(block: Block, step: int, ndigits: int) -> str:
    """Format a block's rows as CSV, with pyarrow, which releases the interpreter lock."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = block.rows
    if "heads" not in rows.made:
        cells = ([*name.partition(":")[::2]] for name in rows.names)
        rows.made["heads"] = pa.array(csv_text(cells).split("\n")[:-1])
        rows.made["micro_steps"] = (
            None if rows.micro_steps is None else pa.array([str(micro) for micro in rows.micro_steps])
        )
    columns = [rows.made["heads"], pa.scalar(str(step))]
    if rows.micro_steps is not None:
        columns.append(rows.made["micro_steps"])
    numbers = iter(range(len(rows.statistics)))
    for column in rows.columns:
        if column in FORM_OPS:
            columns.append(_form_column(block, column))
            continue
        values = block.values[:, next(numbers)]
        cells = _count_column(values) if column == "nans" else _number_column(values, ndigits)
        columns.append(_with_bools(cells, values, block.specs) if column in ("min", "max") else cells)
    lines: Any = pc.binary_join_element_wise(*columns, ",")
    text: Any = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")
    return f"{text[0].as_py()}\n"


def _form_column(block: Block, column: str) -> Any:
    """The shapes or dtypes of the rows' tensors, recomputed only when one has changed."""
    import pyarrow as pa

    known = block.rows.made.get(column)
    if known is None or known[0] != block.specs:
        cells = [["nan"]] * len(block.rows.names)
        if block.specs:
            which = FORM_OPS.index(column)
            cells = [[_shape(spec) if which == 0 else str(spec[1])] for spec in block.specs]
        known = block.rows.made[column] = block.specs, pa.array(csv_text(iter(cells)).split("\n")[:-1])
    return known[1]


def _count_column(values: Values) -> Any:
    import pyarrow as pa

    return pa.array(values.astype(np.int64)).cast(pa.string())


def _number_column(values: Values, ndigits: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.array(rounded(values, ndigits)).cast(pa.string())
    return pc.replace_substring_regex(text, r"^(-?\d+)$", r"\1.0")


def _shape(spec: TensorSpec) -> str:
    """Return a shape as msprobe writes it: torch's as a list, MindSpore's as a tuple."""
    shape, dtype = spec
    return str(list(shape) if str(dtype).startswith("torch.") else tuple(shape))


def _with_bools(text: Any, values: Values, specs: Sequence[TensorSpec] | None) -> Any:
    """The extremes of a tensor of bools are bools."""
    import pyarrow as pa
    import pyarrow.compute as pc

    are_bools = [str(dtype) in ("torch.bool", "Bool") for _, dtype in specs or ()]
    if not any(are_bools):
        return text
    return pc.if_else(pa.array(are_bools), pa.array([str(bool(value)) for value in values]), text)


def rounded(values: Values, ndigits: int) -> Values:
    """Round numbers to this many decimals; below 1 to as many significant digits, so that small numbers do not become
    0."""
    if ndigits > 15:
        return values  # all the digits a double has
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log10(np.abs(values)))
        decimals = np.where(exponent < 0, ndigits - 1 - exponent, ndigits)
        scale = np.power(10.0, decimals)
        short = np.rint(values * scale) / scale
        # Beyond 1e22 a power of ten is not an exact double, and dividing by it adds digits.
        for at in np.flatnonzero(decimals > 22):
            short[at] = float(f"{values[at]:.{ndigits}g}")
    # If the scale exceeds the range of a double (1e-310, 1e305), keep the number.
    return np.where(np.isfinite(short) & (short != 0), short, values)


def csv_text(rows: Iterable[list[str]]) -> str:
    """Format rows as CSV, quoted if needed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
