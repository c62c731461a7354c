"""What other systems check, on the same tables: our own code, from their published descriptions and defaults.

Differences that the tables force: SageMaker's mean absolute gradient is taken as the root mean square, which is never
smaller; its rules about saturation, initialisation and class balance need things no run here records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo.score import Detector, Incident, Line, incidents_of
from zoo.tables import SeriesTable, Values, read_table

LineFinder = Callable[[SeriesTable], Iterator[Line]]


def composer(table: SeriesTable) -> Iterator[Line]:
    """Composer: the loss is NaN."""
    for step in table.steps[np.isnan(table.loss)]:
        yield Line(int(step), "NaNMonitor")


def megatron(table: SeriesTable) -> Iterator[Line]:
    """Megatron-LM: NaN or Inf in loss or local gradients, or ten times the largest of the first 100 samples."""
    for step in table.steps[~np.isfinite(table.loss)]:
        yield Line(int(step), "bad loss")
    yield from _ten_times(table, table.loss, "spiky loss", None)
    chosen = table.columns("gradient_local")
    chosen = chosen if len(chosen) else table.columns("gradient")
    for rank in sorted({table.names[i].rank for i in chosen}):
        own = [i for i in chosen if table.names[i].rank == rank]
        norm = np.sqrt(np.nansum(table.norm[:, own] ** 2, 1))
        for step in table.steps[table.bad[:, own].sum(1) > 0]:
            yield Line(int(step), "bad gradient", rank=rank)
        yield from _ten_times(table, norm, "large gradient", rank)


def _ten_times(table: SeriesTable, values: Values, rule: str, rank: int | None) -> Iterator[Line]:
    first = values[:100][np.isfinite(values[:100])]
    if len(first):
        late = np.arange(len(values)) >= 100
        for step in table.steps[late & (values >= 10 * first.max())]:
            yield Line(int(step), rule, rank=rank)


def olmo(table: SeriesTable) -> Iterator[Line]:
    """OLMo-core: loss or gradient norm above mean + 6 sigma of the last 128, once there are 64."""
    for values, rule in ((table.loss, "loss"), (table.grad_norm, "grad norm")):
        window: deque[float] = deque(maxlen=128)
        for step, value in zip(table.steps, values, strict=True):
            with np.errstate(invalid="ignore"):
                is_high = len(window) >= 64 and value > np.mean(window) + 6 * np.std(window, ddof=1)
            if is_high:
                yield Line(int(step), rule)
            window.append(value)


def zclip(table: SeriesTable) -> Iterator[Line]:
    """ZClip: the gradient norm's z-score above 2.5, with an average that sees the clipped value."""
    values = table.grad_norm
    if not np.isfinite(values[:25]).all():
        return
    mean, variance = float(values[:25].mean()), float(values[:25].var())
    for step, value in zip(table.steps[25:], values[25:], strict=True):
        deviation = variance**0.5 + 1e-6
        z = (value - mean) / deviation
        if z > 2.5 or not np.isfinite(value):
            yield Line(int(step), "grad norm")
            value = mean + 2.5 * deviation / (z / 2.5) if np.isfinite(z) else mean
        mean = 0.97 * mean + 0.03 * value
        variance = 0.97 * variance + 0.03 * (value - mean) ** 2


def sagemaker(table: SeriesTable) -> Iterator[Line]:
    """SageMaker Debugger's defaults: exploding, vanishing, all zero, unchanged, loss not decreasing."""
    gradients, weights = table.columns("gradient"), table.columns("weight")
    norms = table.norm[:, weights]
    with np.errstate(invalid="ignore"):
        flat = np.abs(np.diff(norms, axis=0)) <= 1e-8 + 1e-5 * np.abs(norms[:-1])
    for position, step in enumerate(table.steps):
        for i in np.flatnonzero(table.bad[position] > 0):
            yield _line(table, step, "ExplodingTensor", i)
        for i in gradients[(table.rms[position, gradients] < 1e-7) & (table.zeros[position, gradients] < 1)]:
            yield _line(table, step, "VanishingGradient", i)
        for i in gradients[table.zeros[position, gradients] == 1]:
            yield _line(table, step, "AllZero", i)
        if position >= 3:
            for i in weights[flat[position - 3 : position].all(0)]:
                yield _line(table, step, "UnchangedTensor", i)
        if position >= 10 and position % 10 == 0:
            before, now = table.loss[position - 10], table.loss[position]
            if not now <= before * 0.999:
                yield Line(int(step), "LossNotDecreasing")


def turbulence(table: SeriesTable, threshold: float) -> Iterator[Line]:
    """msprobe: a norm or mean above (1 + threshold) times its running mean, or NaN."""
    stacked = np.stack([table.norm, table.mean], 2)
    average = np.full(stacked.shape[1:], np.nan)
    is_known = np.zeros(average.shape, bool)
    for position, step in enumerate(table.steps):
        # A series that was never recorded has no value; a recorded NaN stays in the average for good, as it does there.
        present = (table.bad[position] >= 0)[:, None] & np.ones(2, bool)
        value = np.abs(stacked[position])
        average = np.where(present & ~is_known, value, average)
        is_known |= present
        with np.errstate(invalid="ignore", over="ignore"):
            above = present & (value > average * (1 + threshold))
            spoilt = present & np.isnan(value)
            average = np.where(present, 0.99 * average + 0.01 * value, average)
        for i, j in np.argwhere(above | spoilt):
            yield _line(table, step, "AnomalyTurbulence" if above[i, j] else "AnomalyNan", i)


def z_score(table: SeriesTable, threshold: float) -> Iterator[Line]:
    """A plain z-score of every series against its running mean and deviation, after 40 steps; NaN counts."""
    values = np.concatenate([table.norm, table.loss[:, None], table.grad_norm[:, None]], 1)
    scalars = (Line(0, "z", "loss"), Line(0, "z", "grad_norm"))
    mean, variance = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    seen = np.zeros(values.shape[1])
    for position, step in enumerate(table.steps):
        value = values[position]
        is_there = np.isfinite(value)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.abs(value - mean) / np.sqrt(variance)
        spoilt = np.zeros(values.shape[1], bool)
        spoilt[: table.bad.shape[1]] = table.bad[position] > 0
        loud = spoilt | (is_there & (seen >= 40) & (z > threshold))
        rate = np.maximum(0.03, 1 / (seen + 1))
        off = np.where(is_there, value - mean, 0.0)
        mean = mean + rate * off
        variance = (1 - rate) * (variance + rate * off**2)
        seen += is_there
        for i in np.flatnonzero(loud):
            if i < len(table.names):
                yield _line(table, step, "z", i)
            else:
                yield replace(scalars[i - len(table.names)], step=int(step))


def _line(table: SeriesTable, step: int, rule: str, i: int | np.integer[Any]) -> Line:
    name = table.names[i]
    return Line(int(step), rule, f"{name.target}/{name.quantity}", name.rank)


def detector_of(find: LineFinder, *words: str) -> Detector:
    """A detector that speaks at the first alert after ten quiet steps; `words` is what it can say of a cause."""

    def detect(path: Path) -> list[Incident]:
        found = incidents_of(list(find(read_table(path))))
        return [_plain(incident, words) for incident in found]

    return detect


def _plain(incident: Incident, words: tuple[str, ...]) -> Incident:
    target = None if incident.target is None else incident.target.split("/")[0]
    is_global = target is None and incident.rank is None
    cause = tuple(word for word in words if word in incident.rule)
    return replace(incident, target=target, scope="global" if is_global else "tensor", cause=cause or ("?",))


DETECTORS: dict[str, Detector] = {
    "NaN in loss (Composer)": detector_of(composer),
    "Megatron NaN/Inf + 10x": detector_of(megatron, "loss", "grad"),
    "OLMo-core 6 sigma of 128": detector_of(olmo, "loss", "grad"),
    "ZClip z > 2.5": detector_of(zclip, "grad"),
    "SageMaker defaults": detector_of(sagemaker),
    "msprobe Turbulence 0.5 + Nan": detector_of(partial(turbulence, threshold=0.5)),
    "msprobe Turbulence 17.4 + Nan": detector_of(partial(turbulence, threshold=17.4)),
    "z-score 3": detector_of(partial(z_score, threshold=3.0)),
    "z-score 6": detector_of(partial(z_score, threshold=6.0)),
    "z-score 9.4": detector_of(partial(z_score, threshold=9.4)),
}
