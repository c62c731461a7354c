"""DeepSpeed's CSV monitor: a folder with one file per metric, its header repeated after every restart."""

from __future__ import annotations

from pathlib import Path

from vario.core.errors import RunCorrupt
from vario.logs import log_format
from vario.logs.history import Curve, History, Note, renamed
from vario.logs.names import canonical_names
from vario.logs.rows import Rows, whole
from vario.logs.text_files import files_in, make_history, read_text, written_at

PATTERN = "Train_*.csv"


@log_format("deepspeed_csv", (PATTERN,), order=31, whole_folder=True)
def deepspeed_csv(path: Path) -> History:
    """CSV files of DeepSpeed's monitor."""
    files = files_in(path, PATTERN)
    curves: dict[str, Curve] = {}
    notes: list[Note] = []
    for file in files:
        rows = Rows()
        for line in read_text(file).splitlines():
            step, _, value = line.partition(",")
            if (at := whole(step)) is not None:
                rows.add(at, {file.stem: value})
        found, went_back = rows.curves()
        curves.update(found)
        notes += [note for note in went_back if note not in notes]
    if not curves:
        raise RunCorrupt(f"{path}: contains no row of numbers yet")
    # The monitor counts samples, not steps.
    notes.append(Note("steps_are_samples"))
    written = max(map(written_at, files))
    return make_history(path, "deepspeed_csv", renamed(curves, canonical_names(curves)), notes, written=written)
