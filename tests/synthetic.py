"""Runs with known numbers, written through the real store: what the golden files are made from."""

from pathlib import Path

import numpy as np

from vario.config import Config
from vario.core.records import COLUMNS, MAX, MIN, SUM, Frame, Scalars, StepRecord
from vario.core.run_header import RunHeader
from vario.sinks.store import Store

STARTED = 1_700_000_000.0
WEIGHTS = ("embedding.weight", "layers.0.weight", "layers.1.weight", "head.weight")
SIDES = ("layers.0:input", "layers.0:output", "layers.1:input", "layers.1:output", "head:input", "head:output")
STRUCTURE = {
    "modules": [{"name": "root", "class": "Model", "num_parameters": 0}],
    "parameters": [
        {"name": name, "shape": [10, 10], "dtype": "float32", "trainable": True, "shared_with": None}
        for name in WEIGHTS
    ],
}


def write_run(
    path: Path,
    num_steps: int = 40,
    bad_step: int | None = None,
    state: str = "finished",
    error: str | None = None,
    parts_off: list[dict[str, object]] | None = None,
    started: float = STARTED,
) -> Path:
    """A run of `num_steps` steps; from `bad_step` on, `layers.1` explodes and everything after it is NaN."""
    store = Store()
    config = Config(quantities=("weight", "gradient", "activation"), every=1)
    versions = {"vario": "0", "python": "3"}
    store.open(RunHeader(path, 0, 1, config.to_json(), versions, "train.py", STRUCTURE, None, False, started))
    for step in range(num_steps):
        store.write(_record(step, bad_step, started))
    if parts_off:
        store.note(parts_off, 0)
    store.close(state, error)
    return path


def _record(step: int, bad_step: int | None, started: float) -> StepRecord:
    bad = bad_step is not None and step >= bad_step
    order = 0
    frames = []
    for quantity, targets in (("activation", SIDES), ("gradient", WEIGHTS[::-1]), ("weight", WEIGHTS)):
        table = np.stack([_summary(quantity, target, step) for target in targets])
        if bad and quantity == "activation":
            table[2:4] = _row(100, 1e20 if step == bad_step else np.nan)
            table[4:] = _row(100, np.nan)
        elif bad:
            table[:] = _row(100, np.nan)
        frames.append(Frame(quantity, step, 0, targets, np.arange(order, order + len(targets), dtype=np.int32), table))
        order += len(targets)
    loss = float("nan") if bad else 4.0 / (1 + step / 10)
    scalars = {"loss": loss, "step_seconds": 0.25, "learning_rate": 1e-3}
    return StepRecord(step, frames, Scalars(step, started + 0.25 * (step + 1), scalars))


def _summary(quantity: str, target: str, step: int) -> np.ndarray:
    names = WEIGHTS if quantity != "activation" else SIDES
    growth = 1 + 0.02 * step * (names.index(target) - 1)
    row = _row(100, {"weight": 0.1, "gradient": 0.01, "activation": 1.0}[quantity] * growth)
    if quantity == "weight":
        row[MIN], row[SUM] = -row[MAX], 0.0  # half of them are negative: a constant is no initialisation
    return row


def _row(count: int, value: float) -> np.ndarray:
    """The Summary of `count` elements of one value; of a NaN, half the elements are NaN and the rest 1."""
    nans = count // 2 if np.isnan(value) else 0
    finite = 1.0 if nans else value
    sums = (np.nan, np.nan) if nans else (count * value, count * value**2)
    columns = dict(zip(COLUMNS, (count, *sums, finite, finite, nans, 0, 0), strict=True))
    return np.array([columns[name] for name in COLUMNS], dtype=np.float64)
