"""Records with known numbers, and stores that write them: shared by the tests of both halves."""

import time
import zlib
from pathlib import Path

import numpy as np

from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Frame, Scalars, StepRecord
from vario.core.run_header import RunHeader
from vario.sinks.store import Store

NAMES = ("embed.weight", "layers.0.weight", "layers.0.bias", "head.weight")
ALERT = {
    "rule": "grad_spike",
    "kind": "relative",
    "severity": "page",
    "step": 5,
    "rank": 0,
    "quantity": "gradient",
    "target": "head.weight",
    "value": 1.0,
    "text": "something",
}
"""A line of `alerts.jsonl`."""
STATISTICS = ["norm", "mean", "rms", "std", "min", "max", "absmax", "nans", "infs", "zeros", "count"]


def tensor(step, target, micro_step=0, rank=0):
    """The elements behind one row: different for every row, the same every time."""
    seed = zlib.crc32(f"{step} {target} {micro_step} {rank}".encode())
    return np.random.default_rng(seed).normal(size=16)


def summary(values):
    """The Summary of a tensor, by numpy."""
    known = values[~np.isnan(values)]
    row = np.zeros(len(COLUMNS))
    row[COUNT] = values.size
    row[SUM] = values.sum()
    row[SUM_SQUARES] = np.square(values).sum()
    row[MIN] = known.min() if known.size else np.nan
    row[MAX] = known.max() if known.size else np.nan
    row[NANS] = np.isnan(values).sum()
    row[INFS] = np.isinf(values).sum()
    row[ZEROS] = (np.abs(values) < 1e-8).sum()
    return row


def frame(step, quantity="gradient", targets=NAMES, micro_step=0, rank=0, order=0, tensors=None):
    """A frame of known tensors; `tensors` replaces some of them."""
    tensors = tensors or {}
    rows = [summary(tensors.get(name, tensor(step, name, micro_step, rank))) for name in targets]
    orders = np.arange(order, order + len(targets), dtype=np.int32)
    return Frame(quantity, step, micro_step, tuple(targets), orders, np.array(rows).reshape(-1, len(COLUMNS)))


def record(step, *frames, time=None, **scalars):
    """A step of these frames, or of one gradient frame."""
    moment = float(step) if time is None else time
    return StepRecord(step, frames or (frame(step),), Scalars(step, moment, scalars or {"loss": 1.0 / (step + 1)}))


def header(path, **changes):
    """What the monitor tells a sink, with some things changed."""
    options = {
        "path": Path(path),
        "rank": 0,
        "world_size": 1,
        "config": {"statistics": STATISTICS, "eps": 1e-8},
        "versions": {"vario": "0.1.0"},
        "command": "python train.py",
        "structure": {"modules": [{"name": "head", "class": "Linear", "num_parameters": 16}], "parameters": []},
        "first_step": None,
        "resume": False,
        "started": time.time(),
    }
    return RunHeader(**{**options, **changes})


def small_parts(**changes):
    """A store that closes and compacts a part every few steps."""
    return Store(**{"part_steps": 4, "small_part_bytes": 0, **changes})


def write_run(path, records, store=None, close="finished", **changes):
    """Write a whole run; `close=None` leaves it as a killed process would."""
    store = store or Store()
    store.open(header(path, **changes))
    for each in records:
        store.write(each)
    if close:
        store.close(close, None)
    return store


def check_rows(table, steps, targets=NAMES, rank=0):
    """Every row of these steps is there once, with numpy's numbers, and nothing else is."""
    rows = table.to_pylist()
    assert sorted((row["step"], row["target"]) for row in rows) == sorted(
        (step, target) for step in steps for target in targets
    )
    for row in rows:
        expected = summary(tensor(row["step"], row["target"], row["micro_step"], rank))
        assert [row[name] for name in COLUMNS] == list(expected)
