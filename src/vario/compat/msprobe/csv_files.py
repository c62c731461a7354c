"""msprobe's CSV files: `grad_reduced_0-0.csv` and its siblings, appended to step by step."""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

from vario.compat.msprobe.blocks import Block
from vario.text import size

log = logging.getLogger("vario")

MAX_WAITING_CHARACTERS = 64 << 20
"""What a disk that takes nothing may leave in memory."""


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

    def rewind_to(self, step: int) -> None:
        """A training run goes on in this folder from that step: rows its first attempt left after it are dropped."""
        self._rewound = {}
        self._first_step = step

    def write(self, block: Block, step: int) -> None:
        """Append one block; what the disk does not take is tried again with the next."""
        first = step // self._steps_per_file * self._steps_per_file
        path = self.folder / f"{block.prefix}_{first}-{first + self._steps_per_file - 1}.csv"
        micro = ["micro_step"] if block.micro_steps is not None else []
        text = csv_text(_rows(block, step, self._ndigits))
        if self._num_waiting + len(text) > MAX_WAITING_CHARACTERS:
            return
        self._num_waiting += len(text)
        header = csv_text(iter([["vpp_stage", "name", "step", *micro, *block.columns]]))
        self._waiting.setdefault(path, [header]).append(text)

    def flush(self) -> None:
        """Give everything to the disk; say once that it does not take it."""
        try:
            for path in list(self._waiting):
                self._append(path)
                del self._waiting[path]
            self._num_waiting = 0
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s: cannot be written: %s. Training goes on; up to %s wait in memory and are tried again.",
                    self.folder,
                    error,
                    size(MAX_WAITING_CHARACTERS),
                )

    def _append(self, path: Path) -> None:
        os.makedirs(self.folder, exist_ok=True)
        if self._rewound is not None and path not in self._rewound:
            self._rewound[path] = None
            drop_from_step(path, self._first_step)
        header, *texts = self._waiting[path]
        is_new = not path.exists() or path.stat().st_size == 0
        # One write for all: a kill leaves the file as it was, or with whole rows.
        with path.open("a", encoding="utf8", newline="") as file:
            file.write("".join([header, *texts] if is_new else texts))


def drop_from_step(path: Path, first_step: int) -> None:
    """Remove the rows of that step and later ones from a file."""
    if not path.exists():
        return
    with path.open(encoding="utf8", newline="") as file:
        rows = list(csv.reader(file))
    at = rows[0].index("step") if rows and "step" in rows[0] else -1
    kept = [row for nth, row in enumerate(rows) if nth == 0 or (at < len(row) and int(row[at]) < first_step)]
    if at >= 0 and len(kept) < len(rows):
        unfinished = path.with_name(path.name + ".tmp")
        unfinished.write_text(csv_text(iter(kept)), encoding="utf8")
        os.replace(unfinished, path)


def _rows(block: Block, step: int, ndigits: int) -> Iterator[list[str]]:
    counts = {nth for nth, name in enumerate(block.statistics) if name == "nans"}
    for row, (name, values) in enumerate(zip(block.names, block.values.tolist(), strict=True)):
        stage, _, rest = name.partition(":")
        cells = [stage, rest, str(step)]
        if block.micro_steps is not None:
            cells.append(str(block.micro_steps[row]))
        numbers = iter(
            str(int(value)) if nth in counts else number_text(value, ndigits) for nth, value in enumerate(values)
        )
        form = {"shape": "nan", "dtype": "nan"}
        if block.forms:
            form = {"shape": str(list(block.forms[row][0])), "dtype": block.forms[row][1]}
        yield cells + [form.get(column) or next(numbers) for column in block.columns]


def number_text(value: float, ndigits: int) -> str:
    """A number rounded to so many decimals; below 1 to as many significant digits, so that nothing small becomes 0."""
    if not math.isfinite(value):
        return str(value)
    return repr(round(value, ndigits)) if abs(value) >= 1 else repr(float(f"{value:.{ndigits}g}"))


def csv_text(rows: Iterator[list[str]]) -> str:
    """Rows as CSV, quoted where needed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
