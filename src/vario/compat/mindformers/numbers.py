"""From what vario records of a step to the numbers of the monitors, under their documented tags.

Pure functions of frames and plain numbers: tensors were reduced once, on their device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vario.compat.mindformers.settings import Settings
from vario.core.quantities import GRADIENT_NORM, LOSS, LOSS_BACKWARD, LOSS_LOCAL
from vario.core.records import MAX, SUM, SUM_SQUARES, Frame, merge_all

ROWS = "batch_rows"
"""Rows of the batches that this rank used in the step."""
MICRO_STEPS = "micro_steps"
MICRO_LOSS = "micro_local_loss"
"""`micro_local_loss/<n>`: the loss of each micro-step, if there are several."""
LOSS_SCALE = "loss_scale"
STEP_TAGS = (
    *("learning-rate", "batch-size", "loss", "loss-scale", "grad-norm", "iteration-time", "throughput"),
    *("model-flops-throughput-per-npu", "B-samples-per-day"),
)
"""What MFLossMonitor shows, in the order of its page."""
SEPARATE_LOSSES = ("lm-loss", "mtp-loss", "load-balancing-loss", "indexer-loss")
SECONDS_PER_DAY = 86400
MOMENTS = {
    "exp_avg": "adam_m_norm",
    "exp_avg_sq": "adam_v_norm",
    "moment1": "adam_m_norm",
    "moment2": "adam_v_norm",
    "moments1": "adam_m_norm",
    "moments2": "adam_v_norm",
    "adam_m": "adam_m_norm",
    "adam_v": "adam_v_norm",
}
"""What optimizers call their moments, and the tag."""


@dataclass(frozen=True)
class Surroundings:
    """What is known before the first step."""

    num_devices: int = 1
    num_data_ranks: int = 1
    """Ranks that read different rows."""
    flops_per_sample: float | None = None
    trainable: frozenset[str] = frozenset()


def norm_of(frames: Iterable[Frame], quantity: str, among: frozenset[str] | None = None) -> float | None:
    """Return the norm of all rows of a quantity together, or of some of them; None if there is no row."""
    tables = []
    for frame in frames:
        if frame.quantity == quantity:
            chosen = [among is None or name in among for name in frame.targets]
            tables.append(frame.summaries[np.array(chosen, bool)])
    rows = np.concatenate(tables) if tables else np.zeros((0, 0))
    return float(np.sqrt(merge_all(rows)[0, SUM_SQUARES])) if len(rows) else None


def derive(settings: Settings, around: Surroundings, frames: Sequence[Frame], scalars: dict[str, float]) -> None:
    """Add the numbers of the monitors to the plain numbers of a step; on the writer thread."""
    if "step_seconds" not in scalars:
        return  # numbers that were logged late
    found: dict[str, float | None] = {}
    if settings.loss_monitor is not None:
        found.update(_step_numbers(settings, around, frames, scalars))
    monitor = settings.monitor
    if monitor.on("device_local_norm"):
        found["device_local_norm"] = norm_of(frames, "gradient_accumulated")
    if monitor.on("weight_state"):
        found["weight_norm"] = norm_of(frames, "weight", around.trainable or None)
    loss = scalars.get(LOSS_LOCAL, scalars.get(LOSS_BACKWARD))
    if loss is not None and monitor.on("local_loss"):
        found["local_loss"] = loss
    if loss is not None and monitor.on("device_local_loss"):
        found["device_accum_local_loss"] = loss * scalars.get(MICRO_STEPS, 1.0)
    if monitor.monitor_on and monitor.throughput_baseline is not None:
        samples = _throughput(settings, around, scalars)
        found["throughput_linearity"] = None if samples is None else samples / monitor.throughput_baseline
    if monitor.on("max_attention_logit"):
        logits = list(attention_logits(frames).values())
        if logits:
            found["max_attention_logit/mean"] = float(np.mean(logits))
            found["max_attention_logit/max"] = float(np.max(logits))
    for tag, value in found.items():
        if value is not None and tag not in settings.supplied:
            scalars.setdefault(tag, value)


def _step_numbers(
    settings: Settings, around: Surroundings, frames: Sequence[Frame], scalars: Mapping[str, float]
) -> dict[str, float | None]:
    seconds = scalars["step_seconds"]
    throughput = _throughput(settings, around, scalars)
    batch = batch_size(settings, around, scalars)
    flops = around.flops_per_sample
    return {
        "learning-rate": scalars.get("lr"),
        "batch-size": batch,
        "loss-scale": scalars.get(LOSS_SCALE),
        "grad-norm": gradient_norm(frames, scalars),
        "iteration-time": seconds * 1e3,
        "throughput": throughput,
        "B-samples-per-day": None if throughput is None else throughput * around.num_devices * SECONDS_PER_DAY / 1e9,
        "model-flops-throughput-per-npu": None
        if flops is None or batch is None or not seconds
        else flops * batch / seconds / 1e12 / around.num_devices,
    }


def gradient_norm(frames: Iterable[Frame], scalars: Mapping[str, float]) -> float | None:
    """Return the norm of all gradients of a step."""
    return scalars[GRADIENT_NORM] if GRADIENT_NORM in scalars else norm_of(frames, "gradient")


def batch_size(settings: Settings, around: Surroundings, scalars: Mapping[str, float]) -> float | None:
    """Return the rows that all ranks used in a step: as configured, or as seen by this rank times the data ranks."""
    for given in (settings.loss_monitor, settings.state_monitor):
        if given is not None and given.global_batch_size:
            return float(given.global_batch_size)
    rows = scalars.get(ROWS)
    return None if rows is None else rows * around.num_data_ranks


def _throughput(settings: Settings, around: Surroundings, scalars: Mapping[str, float]) -> float | None:
    """Return samples per second and device."""
    batch, seconds = batch_size(settings, around, scalars), scalars["step_seconds"]
    return None if batch is None or not seconds else batch / around.num_devices / seconds


def loss_of(scalars: Mapping[str, float]) -> float | None:
    """Return the loss: as logged, or else as vario found it."""
    return next((scalars[name] for name in (LOSS, LOSS_LOCAL, LOSS_BACKWARD) if name in scalars), None)


def norms(frames: Iterable[Frame], quantity: str) -> dict[str, float]:
    """Return the norm of each row of a quantity, by its name."""
    found: dict[str, float] = {}
    for frame in frames:
        if frame.quantity == quantity:
            found.update(zip(frame.targets, np.sqrt(frame.summaries[:, SUM_SQUARES]).tolist(), strict=True))
    return found


def moment_norms(frames: Iterable[Frame]) -> dict[str, float]:
    """Return `adam_m_norm/<parameter>` and `adam_v_norm/<parameter>`."""
    found = {}
    for name, value in norms(frames, "moment").items():
        parameter, _, moment = name.rpartition(":")
        if moment in MOMENTS:
            found[f"{MOMENTS[moment]}/{parameter}"] = value
    return found


def attention_logits(frames: Iterable[Frame]) -> dict[str, float]:
    """Return the largest attention logit of each attention module."""
    found: dict[str, float] = {}
    for frame in frames:
        if frame.quantity == "attention":
            for name, summary in zip(frame.targets, frame.summaries, strict=True):
                module, _, what = name.rpartition(":")
                if what == "max_logit":
                    found[module] = max(float(summary[MAX]), found.get(module, -np.inf))
    return found


def spectra(frames: Iterable[Frame]) -> dict[str, float]:
    """Return `weight_stable_rank/<parameter>` and `weight_eigenvalue/<parameter>`, of W^T W."""
    found: dict[str, float] = {}
    for frame in frames:
        if frame.quantity == "spectrum":
            for name, summary in zip(frame.targets, frame.summaries, strict=True):
                module, _, what = name.rpartition(":")
                value = float(summary[SUM])
                if what == "stable_rank":
                    found[f"weight_stable_rank/{module}.weight"] = value
                elif what == "spectral_norm":
                    found[f"weight_eigenvalue/{module}.weight"] = value * value
    return found


def expert_loads(frames: Iterable[Frame]) -> dict[str, float]:
    """Return `expert_load/<router>/ep_<n>`: the share of a router's tokens that each expert got."""
    found: dict[str, float] = {}
    for frame in frames:
        if frame.quantity == "expert":
            for name, summary in zip(frame.targets, frame.summaries, strict=True):
                router, _, what = name.rpartition(":")
                if what.startswith("ep_"):
                    found[f"expert_load/{router}/{what}"] = float(summary[SUM])
    return found
