"""Runs with rollups of known rows, and what plain numpy says about them: shared by the tests of both halves."""

import numpy as np

from made_runs import header, record
from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Frame
from vario.sinks.store import Store

TARGETS = tuple(f"layers.{index}.weight" for index in (0, 1, 2, 10, 11))
STATISTICS = ("norm", "rms", "mean", "std", "min", "max", "absmax", "zeros", "nans", "infs", "count")


def small_rollups(**changes):
    """A store that makes rollups of very short runs."""
    return Store(
        **{"part_steps": 10, "small_part_bytes": 0, "rollup_min_rows": 1, "bucket_steps": 4, **changes},
    )


def random_frame(step, rank=0, targets=TARGETS, quantity="gradient", micro_step=0, seed=0):
    """Rows of chance; some are spikes, some have a NaN or an Inf, and few have nothing that is finite."""
    chance = np.random.default_rng([seed, step, rank, micro_step])
    rows = np.zeros((len(targets), len(COLUMNS)))
    for row in rows:
        values = chance.normal(chance.normal(), 1, 8) * (1e6 if chance.random() < 0.02 else 1)
        values[chance.random(8) < 0.2] = 0
        if chance.random() < 0.02:
            values[chance.integers(8)] = chance.choice([np.nan, np.inf, -np.inf])
        if chance.random() < 0.01:
            values[:] = np.nan
        row[:] = summary_of(values)
    return Frame(quantity, step, micro_step, targets, np.arange(len(targets), dtype=np.int32), rows)


def summary_of(values):
    """The Summary of a tensor, by numpy."""
    known = values[~np.isnan(values)]
    row = np.zeros(len(COLUMNS))
    row[COUNT], row[NANS], row[INFS] = values.size, np.isnan(values).sum(), np.isinf(values).sum()
    with np.errstate(invalid="ignore"):
        row[SUM], row[SUM_SQUARES] = values.sum(), np.square(values).sum()
    row[MIN], row[MAX] = (known.min(), known.max()) if known.size else (np.nan, np.nan)
    row[ZEROS] = (np.abs(values) < 1e-8).sum()
    return row


def write_rolled_up(path, steps, store=None, close="finished", rank=0, world_size=1, frames=None, **changes):
    """Write steps of a run with rollups; `close=None` leaves it open."""
    store = store or small_rollups()
    store.open(header(path, rank=rank, world_size=world_size, **changes))
    for step in steps:
        made = frames(step) if frames else [random_frame(step, rank)]
        store.write(record(step, *made, loss=np.nan if step % 97 == 5 else float(np.sin(step)), lr=step / 7))
    if close:
        store.close(close, None)
    return store


def by_numpy(rows, statistic):
    """A statistic of Summaries in float64, written down once more."""
    count, total, squares, low, high, nans, infs, zeros = np.asarray(rows, np.float64).T
    with np.errstate(all="ignore"):
        return {
            "norm": np.sqrt(squares),
            "rms": np.sqrt(squares / count),
            "mean": total / count,
            "std": np.sqrt(np.maximum(squares / count - np.square(total / count), 0.0)),
            "min": low,
            "max": high,
            "absmax": np.maximum(np.abs(low), np.abs(high)),
            "zeros": zeros / count,
            "nans": nans,
            "infs": infs,
            "count": count,
        }[statistic]


def rollup_names(path, quantity="gradient", rank=0):
    """Names of the rollups of a quantity."""
    return sorted(file.name for file in (path / f"rank{rank}" / "outlines" / quantity).glob("*"))
