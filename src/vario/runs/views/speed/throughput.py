"""How fast a run trains: samples, tokens and operations a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vario.core.text import duration
from vario.runs.reader import RunReader
from vario.runs.views.speed.time_split import STEP, Values, first_step_of_interest, read_numbers
from vario.runs.views.status.vitals import read_pace

SAMPLES, TOKENS = "samples_seen", "tokens_seen"
MODEL_FLOPS, PEAK_FLOPS = "model_flops", "peak_flops"
"""As logged by the script, for one step of one rank; with `/PRECISION` as counted and as known of the device."""
DAY_SECONDS = 86_400
_UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
_AMOUNTS = ((" billion", 1e9), (" million", 1e6))


@dataclass(frozen=True)
class Throughput:
    """The speed of one rank, evaluations and checkpoints included; None where it is not known."""

    samples_per_second: float | None
    samples_per_day: float | None
    """If it goes on like that."""
    tokens_per_second: float | None
    samples_seen: float | None
    tokens_seen: float | None
    """By this rank, over all sessions of the run."""
    flops_per_second: float | None
    """Operations of the model, not counting those that are computed again."""
    peak_flops: float | None
    """What the device can do in a second, at the precisions of the model."""
    precisions: tuple[str, ...]
    """Of the operations, most first; empty if the script logged their number."""
    utilisation: float | None
    """The share of the peak that the model uses."""
    eta_seconds: float | None
    world_size: int


def read_throughput(run: RunReader, rank: int | None = None) -> Throughput | None:
    """Read the speed of a rank (default: the first) over its last steps; None if nothing of it is known."""
    rank = next(iter(run.ranks), None) if rank is None else rank
    if rank is None or "scalar" not in run.quantities(rank):
        return None
    targets = run.targets("scalar", rank=rank)
    flops, peaks = (_by_precision(run, rank, targets, prefix) for prefix in (MODEL_FLOPS, PEAK_FLOPS))
    _, read = read_numbers(run, rank, first_step_of_interest(run, rank), (STEP, SAMPLES, TOKENS))
    rates = {name: rate(read[STEP], read[name]) for name in (SAMPLES, TOKENS) if name in read}
    per_second = _flops_per_second(run, rank, flops, read, rates.get(SAMPLES))
    peak = _peak(flops, peaks)
    eta = read_pace(run, targets, rank).eta_seconds
    found = Throughput(
        samples_per_second=rates.get(SAMPLES),
        samples_per_day=None if rates.get(SAMPLES) is None else DAY_SECONDS * (rates[SAMPLES] or 0.0),
        tokens_per_second=rates.get(TOKENS),
        samples_seen=_seen(run, rank, targets, SAMPLES),
        tokens_seen=_seen(run, rank, targets, TOKENS),
        flops_per_second=per_second,
        peak_flops=peak,
        utilisation=per_second / peak if per_second and peak else None,
        precisions=tuple(name for name in sorted(flops, key=lambda name: -flops[name]) if name),
        eta_seconds=eta,
        world_size=run.world_size,
    )
    is_known = found.samples_per_second or found.flops_per_second or found.eta_seconds is not None
    return found if is_known else None


def rate(seconds: Values, seen: Values) -> float | None:
    """Return how much a second was seen, from the first to the last step at which its sum is known."""
    known = np.flatnonzero(np.isfinite(seen))
    # Where a run was resumed, the sum begins anew.
    gains = [(a, b) for a, b in pairwise(known.tolist()) if seen[b] >= seen[a]]
    took = float(sum(np.nansum(seconds[a + 1 : b + 1]) for a, b in gains))
    return float(sum(seen[b] - seen[a] for a, b in gains)) / took if took > 0 else None


def _seen(run: RunReader, rank: int, targets: list[str], name: str) -> float | None:
    if name not in targets:
        return None
    series = run.series(name, "scalar", rank=rank)
    values = series.values
    # The last sum of each session: there it drops.
    ends = np.append(np.flatnonzero(np.diff(values) < 0), len(values) - 1)
    if not len(values):
        return None
    # Short steps record it now and then: those since the last time count as the ones before.
    since = max(0, (run.last_step or 0) - int(series.steps[-1]))
    gains = np.diff(values)
    usual = float((gains[gains > 0] / np.diff(series.steps)[gains > 0])[-1]) if (gains > 0).any() else 0.0
    return float(values[ends].sum()) + since * usual


def _by_precision(run: RunReader, rank: int, targets: list[str], prefix: str) -> dict[str, float]:
    """The last number of each precision; what the script logged alone, without one."""
    names = [prefix] if prefix in targets else [name for name in targets if name.startswith(f"{prefix}/")]
    last = {name: run.series(name, "scalar", rank=rank).values for name in names}
    return {name[len(prefix) + 1 :]: float(values[-1]) for name, values in last.items() if len(values)}


def _flops_per_second(
    run: RunReader, rank: int, flops: Mapping[str, float], read: Mapping[str, Values], samples: float | None
) -> float | None:
    if not flops or STEP not in read:
        return None
    counted = _samples_when_counted(run, rank, flops) if samples else None
    steps_per_second = 1.0 / float(np.nanmean(read[STEP]))
    return sum(flops.values()) * (samples / counted if samples and counted else steps_per_second)


def _samples_when_counted(run: RunReader, rank: int, flops: Mapping[str, float]) -> float | None:
    """The rows of the step whose operations were counted: other steps may have fewer or more."""
    if "" in flops or SAMPLES not in run.targets("scalar", rank=rank):
        return None
    counted = run.series(f"{MODEL_FLOPS}/{next(iter(flops))}", "scalar", rank=rank).steps[-1]
    seen = run.series(SAMPLES, "scalar", rank=rank)
    sums: dict[int, float] = dict(zip(seen.steps.tolist(), seen.values.tolist(), strict=True))
    if counted not in sums or counted - 1 not in sums:
        return None
    gain = sums[int(counted)] - sums[int(counted) - 1]
    return gain if gain > 0 else None


def _peak(flops: Mapping[str, float], peaks: Mapping[str, float]) -> float | None:
    if "" in peaks:
        return peaks[""]
    if not flops or "" in flops or any(name not in peaks for name in flops):
        return None
    # The time that all of them take at their peaks.
    return sum(flops.values()) / sum(count / peaks[name] for name, count in flops.items())


def throughput_lines(found: Throughput) -> list[str]:
    """Return what is known in one or two lines."""
    each = " per rank" if found.world_size > 1 else ""
    rates = [(found.samples_per_second, "samples/s"), (found.tokens_per_second, "tokens/s")]
    parts = [f"{_amount(value)} {unit}{each}" for value, unit in rates if value is not None]
    if found.samples_per_day is not None:
        parts.append(f"{_amount(found.samples_per_day)} samples a day")
    if found.tokens_seen:
        parts.append(f"{_amount(found.tokens_seen)} tokens seen{each}")
    elif found.samples_seen:
        parts.append(f"{_amount(found.samples_seen)} samples seen{each}")
    if found.eta_seconds is not None:
        parts.append(f"{duration(found.eta_seconds)} left")
    lines = [", ".join(parts)] if parts else []
    if found.flops_per_second:
        how = f" ({', '.join(found.precisions)})" if found.precisions else ""
        used = "" if found.utilisation is None else f", {100 * found.utilisation:.3g} % of the device's peak"
        lines.append(f"{_flops(found.flops_per_second)}/s{how}{used}")
    return lines


def _flops(value: float) -> str:
    letter, unit = next((each for each in _UNITS if value >= each[1]), _UNITS[-1])
    return f"{value / unit:.3g} {letter}FLOP"


def _amount(value: float) -> str:
    word, unit = next((each for each in _AMOUNTS if value >= each[1]), ("", 1.0))
    return f"{value / unit:.3g}{word}" if word else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
