"""Figures and tables that a script keeps beside its run: `log_figure` and `log_table`."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from vario.backends.protocols.backend import Backend
from vario.core.attachments import FIGURE, MOST_COLUMNS, MOST_NAME, MOST_ROWS, PNG_START, TABLE, Table
from vario.core.errors import ConfigError
from vario.core.params import plain_or_text
from vario.core.text import shown
from vario.store.attachments import AttachmentFolder
from vario.training.writer import Writer


class KeepsAttachments:
    """The part of a Monitor that keeps figures and tables."""

    path: Path | None
    off: set[str]
    guarded: Callable[[str, Callable[..., None]], Callable[..., None]]
    switch_off: Callable[[str, Exception], None]
    step_number: Any
    _closed: bool
    _backend: Backend
    _writer: Writer
    _attachments: AttachmentFolder | None = None

    def log_figure(self, name: str, figure: Any, *, step: int | None = None) -> None:
        """Keep a matplotlib figure (or the bytes of a PNG) beside the run. It is drawn before this returns."""
        self._keep(FIGURE, name, step, lambda: figure_png(figure))

    def log_table(
        self, name: str, table: Any, columns: Sequence[str] | None = None, *, step: int | None = None
    ) -> None:
        """Keep a small table beside the run: a pandas frame, columns by name, or a list of dicts or of rows."""
        self._keep(TABLE, name, step, lambda: table_json(read_table(table, columns)))

    def _keep(self, kind: str, name: str, step: int | None, make: Callable[[], bytes]) -> None:
        part = f"log_{kind} {name}"
        if self._closed or self.path is None or part in self.off:
            return
        try:
            at = self.step_number if step is None else checked_step(step)
            content = checked_name(name), at, time.time(), make()
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.switch_off(part, error)
        else:
            # Not timed like other parts: the script asked for this, and drawing takes its time.
            self._writer.put(partial(self.guarded(f"{kind}s", self._write_attachment), kind, *content))

    def _write_attachment(self, kind: str, name: str, step: int, now: float, content: bytes) -> None:
        """Runs on the writer thread."""
        assert self.path is not None
        if self._attachments is None:
            self._attachments = AttachmentFolder(self.path / f"rank{self._backend.rank}")
        self._attachments.add(kind, name, step, now, content)


def checked_step(step: object) -> int:
    """Return the number of a step; raises ConfigError for anything else."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigError(f"step: expected a whole number of at least 0, got {step!r:.40}")
    return step


def checked_name(name: object) -> str:
    """Return the name of an attachment; raises ConfigError for one that cannot be shown."""
    if not isinstance(name, str) or not name or len(name) > MOST_NAME or shown(name) != name:
        raise ConfigError(f"name: expected 1 to {MOST_NAME} visible characters, got {name!a:.80}")
    return name


def figure_png(figure: Any) -> bytes:
    """Return a matplotlib figure (or the figure of some axes) as a PNG; bytes of a PNG stay as they are."""
    if isinstance(figure, (bytes, bytearray)):
        if not figure.startswith(PNG_START):
            raise ConfigError("figure: these bytes are not a PNG")
        return bytes(figure)
    if not hasattr(figure, "savefig"):
        figure = getattr(figure, "figure", figure)
    if not callable(getattr(figure, "savefig", None)):
        raise ConfigError(f"figure: expected a matplotlib figure or the bytes of a PNG, got {type(figure).__name__}")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def read_table(table: Any, columns: Sequence[str] | None = None) -> Table:
    """Read a small table: a pandas frame, columns by name, a list of dicts, or a list of rows with `columns`."""
    names, rows, num_rows = _parts(table, columns)
    names = [str(name)[:MOST_NAME] for name in names]
    if len(names) > MOST_COLUMNS:
        raise ConfigError(f"table: {len(names)} columns; the limit is {MOST_COLUMNS}")
    cells = [[plain_or_text(value) for value in row] for row in rows]
    if any(len(row) != len(names) for row in cells):
        raise ConfigError(f"table: expected {len(names)} values in every row, one for each column")
    return Table(names, cells, num_rows)


def _parts(table: Any, columns: Sequence[str] | None) -> tuple[list[Any], list[Any], int]:
    """Column names, the first rows, and how many rows there are."""
    if hasattr(table, "itertuples") and hasattr(table, "columns"):
        frame = table if columns is None else table[list(columns)]
        return list(frame.columns), list(frame.head(MOST_ROWS).itertuples(index=False, name=None)), len(frame)
    if isinstance(table, Mapping):
        names = list(table if columns is None else columns)
        values = [table[name] for name in names]
        num_rows = min((len(each) for each in values), default=0)
        return names, list(islice(zip(*values, strict=False), MOST_ROWS)), num_rows
    if not isinstance(table, Sequence) or isinstance(table, (str, bytes)):
        kind = type(table).__name__
        raise ConfigError(f"table: expected columns by name, a list of rows or a pandas frame, got {kind}")
    rows: list[Any] = list(table[:MOST_ROWS])
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(key for row in rows for key in row) if columns is None else columns)
        return names, [[row.get(name) for name in names] for row in rows], len(table)
    width = max((len(row) for row in rows), default=0)
    return list(range(width) if columns is None else columns), rows, len(table)


def table_json(table: Table) -> bytes:
    """Return the content of a table's file."""
    content = {"columns": table.columns, "rows": table.rows, "num_rows": table.num_rows}
    return json.dumps(content, allow_nan=False).encode()
