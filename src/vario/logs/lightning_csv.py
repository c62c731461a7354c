"""Lightning's metrics.csv: one column per metric, empty cells, training and validation on separate rows."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from vario.core.errors import RunCorrupt
from vario.logs import log_format
from vario.logs.history import History, renamed
from vario.logs.names import canonical_names
from vario.logs.rows import NOT_LOGGED, Rows, number, whole
from vario.logs.text_files import make_history, read_text


def _looks_right(text: str) -> bool:
    header = text.lstrip().partition("\n")[0]
    return re.search(r"(^|,)step(,|$)", header.strip()) is not None and header.count(",") >= 1 and ":" not in header


@log_format("lightning_csv", ("metrics.csv",), order=30, looks_right=_looks_right)
def lightning_csv(path: Path) -> History:
    """metrics.csv of Lightning, or any CSV file with a column `step`."""
    reader = csv.DictReader(io.StringIO(read_text(path)))
    rows = Rows()
    try:
        if "step" not in (reader.fieldnames or ()):
            raise RunCorrupt(f"{path}: the CSV file has no column 'step'")
        for line in reader:
            step = whole(line.pop("step", None))
            if step is None:
                # Lightning's rate monitor before 2.5 and a truncated last line leave rows without a step.
                continue
            epoch = number(line.pop("epoch", None))
            rows.add(step, line, NOT_LOGGED if epoch is None else epoch)
    except csv.Error as error:
        raise RunCorrupt(f"{path}: line {reader.line_num} is not valid CSV: {error}") from error
    curves, notes = rows.curves()
    names = canonical_names(curves)
    # Lightning counts epochs from 0, and its step is the one before the update: keep both as written.
    return make_history(path, "lightning_csv", renamed(curves, names), notes)
