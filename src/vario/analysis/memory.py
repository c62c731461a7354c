"""Predicts how much memory a training step takes, before it runs and without a GPU.

Runs one step on tensors that have shapes but no memory, with the operators, the autocast rules and the attention
kernels of the GPU. Its allocations go through a simulation of torch's caching allocator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vario.analysis.allocator import replay
from vario.analysis.formula import estimate
from vario.analysis.strategies import Strategy, shard
from vario.backends.gpus import GIB, GPUS, Gpu
from vario.backends.gpus import find_gpu as find_gpu
from vario.backends.memory_trace import MemoryTrace
from vario.core.errors import ConfigError
from vario.core.text import suggestion, unknown

KINDS = ("weights", "gradients", "optimizer", "activations", "temporary")
PRECISIONS = ("fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed")
NUM_LARGEST = 10
MAX_BATCH = 65536
"""The largest batch to try."""


@dataclass(frozen=True)
class LargeTensors:
    """Tensors of one shape and dtype from one operator of one module that are alive at the peak."""

    module: str
    maker: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    num_bytes: int
    """The bytes of all of them."""


@dataclass(frozen=True)
class MemoryPrediction:
    """The memory that a training step takes on one GPU."""

    peak_bytes: int
    """The predicted `torch.cuda.max_memory_allocated()`."""

    reserved_bytes: int
    """The predicted `torch.cuda.max_memory_reserved()`."""

    kinds: dict[str, int]
    """The peak by kind: weights, gradients, optimizer, activations, temporary."""

    kind_peaks: dict[str, int]
    """The peak of each kind at any time; gradients are allocated while activations are freed."""

    phase: str
    """The phase of the peak: forward, backward or optimizer."""

    module: str
    """The module that runs at the peak; empty outside of all modules."""

    operator: str
    phase_peaks: dict[str, int]
    """The peak of each phase."""

    largest: list[LargeTensors]
    """The largest tensors at the peak, largest first."""

    gpu: str
    gpu_bytes: int
    """The memory of one such GPU."""

    context_bytes: int
    gpus: int = 1
    strategy: str = ""
    notes: list[str] = field(default_factory=list)
    bounds: list[str] = field(default_factory=list)
    """Where sizes depend on values (`masked_select in layers.1`): the largest possible sizes are used there."""

    @property
    def is_upper_bound(self) -> bool:
        """Whether this is an upper bound, because some sizes depend on values."""
        return bool(self.bounds)

    @property
    def total_bytes(self) -> int:
        """About what `nvidia-smi` shows for the process: reserved memory plus CUDA's own."""
        return self.reserved_bytes + self.context_bytes

    def fits(self, budget: int | str) -> bool:
        """Whether it fits into a GPU of that name, or into that many bytes."""
        return self.total_bytes <= budget_bytes(budget)

    def scalars(self) -> dict[str, int]:
        """Return numbers for `monitor.log(**prediction.scalars())`; the report then compares predicted and measured
        memory."""
        return {"predicted_peak_bytes": self.peak_bytes, "predicted_reserved_bytes": self.reserved_bytes}


def budget_bytes(budget: int | str) -> int:
    """Return bytes for a number, for '24GiB' or for the name of a GPU."""
    if isinstance(budget, (int, float)):
        return int(budget)
    units = {"gib": GIB, "gb": GIB, "g": GIB, "mib": 1 << 20, "mb": 1 << 20, "m": 1 << 20}
    text = budget.strip().lower()
    digits = text.rstrip("gimb ")
    unit = text[len(digits) :].strip()
    if digits.replace(".", "", 1).isdigit() and (unit in units or "." in digits):
        return int(float(digits) * units.get(unit, GIB))
    if text not in GPUS:
        raise ConfigError(f"budget: '{budget}' is neither a size such as 24GiB nor a GPU. {suggestion(text, GPUS)}")
    return GPUS[text].memory_bytes


def predict_memory(
    model: Any,
    batch: Any = None,
    *,
    batch_size: int = 1,
    sequence_length: int = 512,
    precision: str | None = None,
    optimizer: Any = "adamw",
    checkpointing: bool = False,
    accumulation: int = 1,
    clip: bool = True,
    keep_outputs: bool = False,
    padded: bool = False,
    loss: Callable[[Any, Any], Any] | None = None,
    gpu: str | Gpu = "h100",
    gpus: int = 1,
    strategy: str = "ddp",
) -> MemoryPrediction:
    """Predict the peak of a training step, without running it.

    `model` may be real, or built under `torch.device("meta")`; it is copied without its memory and not changed. `batch`
    is what the model is called with; transformers models need none. `precision` (default: the model's own) is fp32,
    bf16, fp16, or bf16-mixed and fp16-mixed for autocast over float32 weights. `optimizer` is a name, an optimizer, or
    a function of the parameters. `loss(outputs, batch)` is needed if the model returns no loss.
    """
    from vario.backends.torch.memory_simulation.batches import example_batch, loss_of
    from vario.backends.torch.memory_simulation.optimizers import optimizer_maker
    from vario.backends.torch.memory_simulation.step import StepPlan, simulate

    if precision is not None and precision not in PRECISIONS:
        raise ConfigError(unknown("precision", precision, PRECISIONS))
    _check_counts(batch_size=batch_size, sequence_length=sequence_length, accumulation=accumulation, gpus=gpus)
    found = find_gpu(gpu) if isinstance(gpu, str) else gpu
    shards = Strategy.named(strategy, gpus)
    plan = StepPlan(
        make_optimizer=optimizer_maker(optimizer, model),
        loss_of=loss or loss_of,
        precision=precision,
        accumulation=accumulation,
        checkpoints=checkpointing,
        clips=clip,
        keeps_outputs=keep_outputs,
        is_padded=padded,
    )
    if batch is None:
        batch = example_batch(model, batch_size, sequence_length, padded)
    trace = simulate(model, batch, plan, found)
    return summarize(shard(trace, shards), found, shards)


def _check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}: expected a whole number above 0, got {value!r}")


def summarize(trace: MemoryTrace, gpu: Gpu, strategy: Strategy | None = None) -> MemoryPrediction:
    """Summarise a trace: its peak, when it is reached, and what it consists of."""
    replayed = replay(trace)
    held, kinds, kind_peaks = (dict.fromkeys(KINDS, 0) for _ in range(3))
    alive: set[int] = set()
    at_peak: set[int] = set()
    for event, number in enumerate(trace.events):
        block = trace.blocks[number if number >= 0 else ~number]
        kind = {"inputs": "activations", "workspace": "temporary"}.get(block.kind, block.kind)
        if number >= 0:
            alive.add(number)
            held[kind] += block.num_bytes
            kind_peaks[kind] = max(kind_peaks[kind], held[kind])
        else:
            alive.discard(~number)
            held[kind] -= block.num_bytes
        if event == replayed.peak_event:
            at_peak, kinds = set(alive), dict(held)
    # The allocator's rounding belongs to no tensor in particular.
    kinds["temporary"] += replayed.peak_bytes - sum(kinds.values())
    newest = trace.blocks[trace.events[replayed.peak_event]]
    phase_peaks: dict[str, int] = {}
    for phase, peak in replayed.phase_peaks:
        phase_peaks[phase] = max(phase_peaks.get(phase, 0), peak)
    phase = next(name for start, name in reversed(trace.phases) if start <= replayed.peak_event)
    return MemoryPrediction(
        peak_bytes=replayed.peak_bytes,
        reserved_bytes=replayed.reserved_bytes,
        kinds=kinds,
        kind_peaks=kind_peaks,
        phase=phase,
        module=newest.module,
        operator=newest.maker,
        phase_peaks={phase: peak for phase, peak in phase_peaks.items() if phase != "model"},
        largest=_largest(trace, at_peak),
        gpu=gpu.name,
        gpu_bytes=gpu.memory_bytes,
        context_bytes=gpu.context_bytes,
        gpus=strategy.gpus if strategy else 1,
        strategy=strategy.name if strategy and strategy.gpus > 1 else "",
        bounds=list(trace.bounds),
        notes=[*trace.notes, *(strategy.notes if strategy and strategy.gpus > 1 else ())],
    )


def _largest(trace: MemoryTrace, alive: set[int]) -> list[LargeTensors]:
    groups: dict[LargeTensors, list[int]] = {}
    for number in alive:
        block = trace.blocks[number]
        module = "" if block.kind in ("weights", "optimizer", "gradients") else _without_numbers(block.module)
        one = LargeTensors(module, block.maker, block.kind, block.dtype, block.shape, 1, block.num_bytes)
        groups.setdefault(one, []).append(block.num_bytes)
    made = [replace(one, count=len(sizes), num_bytes=sum(sizes)) for one, sizes in groups.items()]
    return sorted(made, key=lambda one: -one.num_bytes)[:NUM_LARGEST]


def _without_numbers(module: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def max_batch_size(model: Any, budget: int | str, batch: Any = None, *, limit: int = MAX_BATCH, **options: Any) -> int:
    """Return the most examples per step for which a training step fits; 0 if not even one does.

    `budget` is a number of bytes, a text such as '24GiB' or the name of a GPU; the other arguments are those of
    `predict_memory`.
    """
    from vario.backends.torch.memory_simulation.batches import with_batch_size

    allowed = budget_bytes(budget)
    options.pop("batch_size", None)
    needed: dict[int, int] = {}

    def fits(size: int) -> bool:
        if size not in needed:
            sized = None if batch is None else with_batch_size(batch, size)
            needed[size] = predict_memory(model, sized, batch_size=size, **options).total_bytes
        return needed[size] <= allowed

    if not fits(1):
        return 0
    low, high = 1, limit + 1
    guess = 2
    while high - low > 1:
        if fits(guess):
            low = guess
        else:
            high = guess
        guess = _next_guess(needed, low, high, allowed)
    return low


def _next_guess(needed: dict[int, int], low: int, high: int, allowed: int) -> int:
    """Memory grows about linearly with the batch: extrapolate from two known sizes to the budget."""
    others = [size for size in needed if size != low]
    nearest = high if high in needed else max(others)
    slope = (needed[nearest] - needed[low]) / (nearest - low)
    if slope <= 0:
        return min(low * 2, high - 1)
    met = low + int((allowed - needed[low]) / slope)
    return min(max(met, low + 1), high - 1)


def estimate_model_memory(
    model: Any, batch_size: int = 1, sequence_length: int = 512, precision: str = "fp16"
) -> dict[str, Any]:
    """Estimate the memory of training with AdamW, in GiB, by kind; the total is the peak of a step.

    The total is below the sum, because gradients are allocated while activations are freed. `method` is "simulated", or
    "formula" with a `note` if the model could not be simulated; the formula covers what is kept from step to step, and
    activations only for transformers.
    """
    _check_counts(batch_size=batch_size, sequence_length=sequence_length)
    try:
        found = predict_memory(
            model, batch_size=batch_size, sequence_length=sequence_length, precision=precision, optimizer="adamw"
        )
    except ConfigError as error:
        if precision not in PRECISIONS:
            raise
        return estimate(model, batch_size, sequence_length, precision, str(error))
    except Exception as error:  # noqa: BLE001 - any model may refuse tensors without memory; the formula always answers
        return estimate(model, batch_size, sequence_length, precision, f"{type(error).__name__}: {error}")
    return {
        "parameters_gb": found.kind_peaks["weights"] / GIB,
        "gradients_gb": found.kind_peaks["gradients"] / GIB,
        "optimizer_gb": found.kind_peaks["optimizer"] / GIB,
        "activations_gb": found.kinds["activations"] / GIB,
        "temporary_gb": found.kinds["temporary"] / GIB,
        "total_estimated_gb": found.peak_bytes / GIB,
        "reserved_gb": found.reserved_bytes / GIB,
        "method": "simulated",
        "is_upper_bound": found.is_upper_bound,
    }
