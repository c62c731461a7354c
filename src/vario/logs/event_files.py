"""TensorBoard event files of any writer. All files of a folder are one log: a restarted job opens a new file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vario.core.errors import RunCorrupt
from vario.core.event_file import fields, read_records
from vario.logs import log_format
from vario.logs.history import LOSS, Curve, History, pace_between, renamed
from vario.logs.names import canonical_names
from vario.logs.rows import Rows
from vario.logs.text_files import files_in, make_history, written_at

PATTERN = "*tfevents*"
EPOCHS = ("train/epoch", "epoch")
"""Tags whose value is the step's epoch."""
FINAL = tuple(
    f"train/{name}"
    for name in ("train_loss", "train_runtime", "total_flos", "train_samples_per_second", "train_steps_per_second")
)
"""What the HF Trainer writes once, at the end: one point is not a curve, and its loss is a mean over the run."""

FLOAT, DOUBLE = 1, 2
"""The numpy dtypes of element types in a protobuf tensor."""


@log_format("tensorboard", (PATTERN,), order=20, whole_folder=True)
def event_files(path: Path) -> History:
    """TensorBoard event files of one folder, or a single one."""
    files = files_in(path, PATTERN)
    rows = Rows()
    written = 0.0
    num_events = 0
    for file in files:
        written = max(written, written_at(file))
        try:
            for step, time, tag, value in _scalars(file):
                rows.add(step, {tag: value}, time=time)
                num_events += 1
        except (ValueError, struct.error) as error:
            raise RunCorrupt(f"{file}: contains records that are not TensorBoard events: {error}") from error
    if not num_events:
        raise RunCorrupt(f"{path}: contains no TensorBoard scalar")
    curves, notes = rows.curves()
    if any(tag in curves for tag in FINAL):
        curves = {tag: curve for tag, curve in curves.items() if tag not in FINAL}
    curves = _with_epochs(curves)
    curves = renamed(curves, canonical_names(curves))
    clock = curves.get(LOSS) or max(curves.values(), key=len, default=None)
    pace = pace_between(clock.steps, clock.times, "event_times") if clock else None
    return make_history(path, "tensorboard", curves, notes, pace=pace, written=written)


def _scalars(file: Path) -> Iterator[tuple[int, float, str, float]]:
    """Yield step, wall time, tag and value of every scalar, up to a truncated end."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RunCorrupt(f"{file}: cannot be read: {error.strerror}") from error
    for record in read_records(content):
        step, time = 0, np.nan
        summaries = []
        for number, value in fields(record):
            if number == 1 and isinstance(value, bytes):
                (time,) = struct.unpack("<d", value)
            elif number == 2 and isinstance(value, int):
                step = value - (1 << 64) if value >> 63 else value
            elif number == 5 and isinstance(value, bytes):
                summaries.append(value)
        for summary in summaries:
            for number, value in fields(summary):
                if number == 1 and isinstance(value, bytes):
                    tag, found = _value(value)
                    if found is not None:
                        yield step, time, tag, found


def _value(content: bytes) -> tuple[str, float | None]:
    tag, found = "", None
    for number, value in fields(content):
        if isinstance(value, bytes):
            if number == 1:
                tag = value.decode("utf8", errors="replace")
            elif number == 2:
                (found,) = struct.unpack("<f", value)
            elif number == 8:
                found = _tensor(value)
    return tag, found


def _tensor(content: bytes) -> float | None:
    """The value of a one-element tensor; None for text, histograms and images, which are tensors too."""
    kind, packed = 0, b""
    for number, value in fields(content):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            packed = value
    form = {FLOAT: "<f", DOUBLE: "<d"}.get(kind)
    if form is None or len(packed) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, packed)[0])


def _with_epochs(curves: dict[str, Curve]) -> dict[str, Curve]:
    """Attach the epochs to the points of all other curves."""
    tag = next((tag for tag in EPOCHS if tag in curves), None)
    if tag is None:
        return curves
    clock = curves[tag]
    found = {}
    for name, curve in curves.items():
        if name != tag:
            epochs = np.interp(curve.steps, clock.steps, clock.values, left=np.nan, right=np.nan)
            found[name] = Curve(curve.steps, curve.values, epochs, curve.times)
    return found or curves
