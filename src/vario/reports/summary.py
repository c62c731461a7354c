"""The content of a report: `summarise` finds the numbers, `summary_text.render` turns them into text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.attachments import Attachment
from vario.remote.shipping.state_file import ShippingState
from vario.reports.machine_use import MachineUse, read_machine_use
from vario.reports.movement import Jump, Mover, find_jump, find_movers
from vario.runs.files.arrays import numbers
from vario.runs.files.listing_cache import listings_cached
from vario.runs.files.status import NotOffered, PartOff, RankState
from vario.runs.files.unmerged import Unmerged, find_unmerged
from vario.runs.findings.desync import Desync, first_desync
from vario.runs.findings.diagnosis import Diagnosis, diagnose
from vario.runs.findings.onset import Onset, first_bad
from vario.runs.findings.time_verdict import TimeVerdict, time_verdict
from vario.runs.reader import Series
from vario.runs.run import Run
from vario.runs.views.speed.linearity import Linearity, read_linearity
from vario.runs.views.speed.overhead import Overhead, read_overhead
from vario.runs.views.speed.throughput import Throughput, read_throughput
from vario.runs.views.status.losses import LossSeries, read_losses
from vario.runs.views.tensors.channels import channel_line
from vario.runs.views.tensors.clipping import Clipping, read_clipping
from vario.runs.views.tensors.expert_balance import ExpertBalance, read_expert_balance
from vario.runs.views.tensors.gradient_cosines import GradientCosines, read_gradient_cosines
from vario.runs.views.tensors.noise_scale import NoiseScale, read_noise_scale
from vario.runs.views.tensors.precision import PrecisionBrief, precision_brief

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """The loss over the run."""

    first: float
    last: float
    lowest: float | None
    """The lowest finite value; None if there is none."""
    lowest_step: int | None
    values: Values
    is_found: bool = False
    """Whether vario found it because the script logged none."""
    part: str = ""
    """The part of the model it belongs to, if several are trained against each other."""


@dataclass(frozen=True)
class QuantityCount:
    """How much of one quantity was recorded, on any rank."""

    quantity: str
    num_targets: int
    num_steps: int


@dataclass(frozen=True)
class RunSummary:
    """The content of the report."""

    path: Path
    name: str
    state: str
    error: str | None
    ranks: list[int]
    world_size: int
    mesh: dict[str, int]
    rank_states: list[RankState]
    first_step: int | None
    last_step: int | None
    num_steps: int
    duration_seconds: float | None
    """From the start to the last recorded step."""
    step_seconds: float | None
    """Median time of one step."""
    throughput: Throughput | None
    """Samples, tokens and operations a second."""
    linearity: Linearity | None
    """The speed of a rank beside that of a baseline, if one was given."""
    time: TimeVerdict | None
    """Where the time of its steps goes, and what limits its speed."""
    clipping: Clipping | None
    """How often gradients are clipped, and by how much."""
    noise_scale: NoiseScale | None
    """The gradient noise scale, where gradients are accumulated."""
    precision: PrecisionBrief | None
    """What lower precisions would lose, if distributions were recorded."""
    channels: str
    """The channel that stands out most, if channels were recorded."""
    cosines: GradientCosines | None
    """How much gradients of consecutive steps and of ranks agree."""
    loss: Loss | None
    part_losses: list[Loss]
    """The losses of further parts that are trained against the first."""
    experts: ExpertBalance | None
    """How evenly routers distribute tokens over experts, if there are any."""
    peak_memory_bytes: dict[str, float]
    """Highest value of `process_memory_bytes` and of each device's `device_memory_peak_bytes`."""

    machine: MachineUse | None
    """What the hosts and their GPUs did, if that was recorded."""
    predicted_peak_bytes: float | None
    """The predicted peak of a device, if one was logged."""
    overhead: Overhead | None
    """The measured cost of watching, if known."""
    skipped_steps: int
    """Steps that a loss scaler skipped."""
    first_bad: Onset | None
    jump: Jump | None
    """A tensor that became very large just before, and may be the cause."""
    parts_off: list[PartOff]
    not_offered: list[NotOffered]
    """Quantities that the model's framework does not offer."""
    unmerged: list[Unmerged]
    """Tensors of several ranks that share only their name."""
    dropped_steps: int
    shipping: ShippingState | None
    """How far it was copied elsewhere, if that was asked for."""
    desync: Desync | None
    """Where replicas began to differ between ranks."""
    diagnosis: Diagnosis
    """What the rules found, and what came first."""
    movers: list[Mover]
    counts: list[QuantityCount]
    attachments: list[Attachment]
    """Figures and tables kept beside the run."""


@listings_cached()
def summarise(run: Run, baseline: Run | None = None) -> RunSummary:
    """Read what a report needs: all scalars, and a few frames of everything else.

    `baseline`: a run whose speed this one's is compared with.
    """
    ranks = run.ranks
    rank = ranks[0] if ranks else 0
    scalars = _scalars(run, rank)
    losses = [_loss(series) for series in read_losses(run)]
    steps = _steps(run, rank) if ranks else np.zeros(0, np.int64)
    onset = first_bad(run)
    step_times = scalars.get("step_seconds")
    skipped = scalars.get("skipped_step")
    return RunSummary(
        path=run.path,
        name=run.name,
        state=run.state,
        error=run.error,
        ranks=ranks,
        world_size=run.world_size,
        mesh=run.mesh,
        rank_states=run.rank_states,
        first_step=int(steps[0]) if len(steps) else None,
        last_step=run.last_step,
        num_steps=len(steps),
        duration_seconds=_duration(run, rank),
        step_seconds=None if step_times is None else float(np.nanmedian(step_times.values)),
        throughput=read_throughput(run),
        linearity=None if baseline is None else read_linearity(run, baseline),
        time=time_verdict(run),
        clipping=read_clipping(run),
        noise_scale=read_noise_scale(run),
        precision=precision_brief(run),
        channels=channel_line(run),
        cosines=read_gradient_cosines(run),
        experts=read_expert_balance(run),
        loss=losses[0] if losses else None,
        part_losses=losses[1:],
        peak_memory_bytes=_peak_memory(scalars),
        machine=read_machine_use(run),
        predicted_peak_bytes=_predicted(scalars),
        overhead=read_overhead(run),
        skipped_steps=0 if skipped is None else int(np.nansum(skipped.values)),
        first_bad=onset,
        jump=None if onset is None else find_jump(run, onset),
        parts_off=run.parts_off,
        not_offered=run.not_offered,
        unmerged=find_unmerged(run),
        dropped_steps=run.dropped_steps,
        shipping=run.shipping,
        desync=first_desync(run),
        diagnosis=diagnose(run),
        movers=find_movers(run, before_step=None if onset is None else onset.step) if ranks else [],
        counts=_counts(run) if ranks else [],
        attachments=run.attachments,
    )


def _steps(run: Run, rank: int) -> npt.NDArray[np.int64]:
    """The steps with plain numbers, which all steps have; for an imported run without any, those of the tensors."""
    recorded = run.quantities(rank)
    steps = [run.steps(name, rank) for name in (["scalar"] if "scalar" in recorded else recorded)]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *steps]))


def _scalars(run: Run, rank: int) -> dict[str, Series]:
    if not run.ranks or "scalar" not in run.quantities(rank):
        return {}
    return {target: run.series(target, "scalar", rank=rank) for target in run.targets("scalar", rank=rank)}


def _duration(run: Run, rank: int) -> float | None:
    if not run.ranks or "scalar" not in run.quantities(rank):
        return None
    times: Any = numbers(run.to_arrow("scalar", rank).column("time"))
    return float(times.max() - run.started) if len(times) else None


def _loss(series: LossSeries) -> Loss:
    values = series.values
    finite = np.flatnonzero(np.isfinite(values))
    lowest = finite[values[finite].argmin()] if len(finite) else None
    return Loss(
        first=float(values[0]),
        last=float(values[-1]),
        lowest=None if lowest is None else float(values[lowest]),
        lowest_step=None if lowest is None else int(series.steps[lowest]),
        values=values,
        is_found=series.is_found,
        part=series.part,
    )


def _predicted(scalars: dict[str, Series]) -> float | None:
    found = scalars.get("predicted_peak_bytes")
    return None if found is None or not len(found.values) else float(found.values[-1])


def _peak_memory(scalars: dict[str, Series]) -> dict[str, float]:
    counted = ("process_memory_bytes", "device_memory_peak_bytes")
    return {name: float(np.nanmax(found.values)) for name, found in scalars.items() if name.startswith(counted)}


def _counts(run: Run) -> list[QuantityCount]:
    return [QuantityCount(name, len(run.targets(name)), len(run.steps(name, "all"))) for name in run.quantities("all")]
