"""Predict how much a run writes: rows per step of each quantity, bytes a day, files, and what a step costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vario.analysis.building import Built
from vario.core.errors import ConfigError
from vario.core.quantities import default_every
from vario.core.retention_options import Options, Tiers, tiers_of

ROW_BYTES = {
    "gradient": 23.0,
    "weight": 24.0,
    "moment": 28.0,
    "activation": 15.0,
    "activation_gradient": 16.0,
    "update": 27.0,
    "attention": 26.0,
    "unit": 6.0,
    "checksum": 12.0,
    "scalar": 4.0,
}
"""Bytes on disk of a row, with distributions: a Llama of 4 layers trained for 1,500 steps, default options."""
ROLLUP_ROW_BYTES = 142.0
"""Bytes on disk of a row of a rollup: `bench/dashboard.py --retention tiers`."""
WRITER_SECONDS_PER_ROW = 0.65e-6
"""CPU time of the background thread, compaction included: `bench/store.py`."""
MEMORY_BYTES_PER_SECOND = 2e12
"""At which tensors are read: an A100 or H100."""

ROLLUP_MIN_ROWS = 1 << 20
BUCKET_STEPS, COARSER, FINE_BUCKETS = 128, 4, 256
"""The rollups of the run store."""
STREAM_ROW_BYTES = 84
PART_BYTES, SMALL_PART_BYTES, PART_STEPS = 32 << 20, 2 << 20, 128
MERGED_ROWS = 1 << 18
"""Rows of a part after merging, about."""
ROLLUP_FILE_BUCKETS = 16

ADAPTIVE = ("adam", "lamb", "adafactor", "lion", "nadam", "radam", "rmsprop")
SCALARS = 40
"""Plain numbers per step: step time, memory, learning rates, readings of the machine, what is logged."""
STRATEGIES = ("ddp", "fsdp")
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class QuantityVolume:
    """One quantity of one rank."""

    quantity: str
    rows: float
    """At a step at which it is recorded."""
    every: int
    """One step in this many."""
    rows_per_step: float
    all_bytes: float
    """Of the whole run if every row is kept, with rollups."""
    bytes: float
    """Of the whole run with the tiers that were asked for."""
    all_files: int
    files: int
    tensor_bytes_per_step: float
    """What is read of tensors per step, on average."""


@dataclass(frozen=True)
class VolumePlan:
    """What a run will write."""

    steps: int
    ranks: int
    step_seconds: float | None
    strategy: str
    leading: list[QuantityVolume]
    """Of the rank that records what all have."""
    other: list[QuantityVolume]
    """Of each other rank."""
    notes: list[str] = field(default_factory=list)

    @property
    def rows_per_step(self) -> float:
        """On the leading rank."""
        return sum(one.rows_per_step for one in self.leading)

    def total(self, name: str, rank: str = "all") -> float:
        """Return the sum of a number over quantities, of the leading rank, each other one, or all ranks."""
        leading = sum(getattr(one, name) for one in self.leading)
        other = sum(getattr(one, name) for one in self.other)
        return float({"leading": leading, "other": other}.get(rank, leading + (self.ranks - 1) * other))

    def bytes_a_day(self, name: str, rank: str = "all") -> float | None:
        """Return the average over the run; None if the time of a step is not known."""
        if self.step_seconds is None:
            return None
        return self.total(name, rank) / (self.steps * self.step_seconds) * SECONDS_PER_DAY

    @property
    def writer_seconds(self) -> float:
        """CPU time of the background thread per step."""
        return self.rows_per_step * WRITER_SECONDS_PER_ROW

    @property
    def reading_seconds(self) -> float:
        """Time to read the watched tensors once per step, at the speed of a GPU's memory."""
        return sum(one.tensor_bytes_per_step for one in self.leading) / MEMORY_BYTES_PER_SECOND

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        ranks = {}
        for rank in ("leading", "other", "all"):
            ranks[rank] = {
                name: {
                    "bytes": self.total(key, rank),
                    "bytes_a_day": self.bytes_a_day(key, rank),
                    "files": self.total(files, rank),
                }
                for name, key, files in (("with_tiers", "bytes", "files"), ("every_row", "all_bytes", "all_files"))
            }
        return {
            "steps": self.steps,
            "ranks": self.ranks,
            "step_seconds": self.step_seconds,
            "strategy": self.strategy,
            "rows_per_step": self.rows_per_step,
            "volume": ranks,
            "leading": [vars(one) for one in self.leading],
            "other": [vars(one) for one in self.other],
            "cost_per_step": {
                "writer_cpu_seconds": self.writer_seconds,
                "reading_seconds": self.reading_seconds,
            },
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Targets:
    """How many rows a quantity has at a step, and how many bytes of tensors they are made from."""

    rows: float
    tensor_bytes: float = 0.0
    watched: float = 1.0
    """Steps of its interval at which it is recorded."""


def plan_volume(
    built: Built,
    steps: int,
    ranks: int = 1,
    step_seconds: float | None = None,
    *,
    batch_size: int = 1,
    sequence_length: int = 512,
    optimizer: str = "adamw",
    strategy: str = "ddp",
    retention: Options = "tiers",
) -> VolumePlan:
    """Predict what a run of a model writes at the default intervals. Memory for the model is not needed."""
    for name, value in (("steps", steps), ("ranks", ranks)):
        if value < 1:
            raise ConfigError(f"{name}: expected a whole number above 0, got {value!r}")
    if step_seconds is not None and not step_seconds > 0:
        raise ConfigError(f"step_seconds: expected a number above 0, got {step_seconds!r}")
    notes = [*built.notes]
    held = _held(built.model, optimizer)
    own = {**_activations(built, batch_size, sequence_length, notes), "scalar": Targets(SCALARS)}
    leading, other = {**held, **own}, dict(own)
    if ranks > 1:
        sums = Targets(2 * held["weight"].rows, held["weight"].tensor_bytes)
        if strategy == "ddp":
            # Replicas are recorded once; every rank has their checksums.
            leading["checksum"] = other["checksum"] = sums
        else:
            other = leading = {
                name: Targets(one.rows, one.tensor_bytes / (ranks if name in held else 1), one.watched)
                for name, one in leading.items()
            }
    return VolumePlan(
        steps,
        ranks,
        step_seconds,
        strategy,
        [_volume(name, one, steps, retention) for name, one in leading.items()],
        [_volume(name, one, steps, retention) for name, one in other.items()] if ranks > 1 else [],
        notes,
    )


def _held(model: Any, optimizer: str) -> dict[str, Targets]:
    """What is recorded of parameters."""
    parameters = [(one.numel() * one.element_size(), one.numel(), one.requires_grad) for one in model.parameters()]
    trainable = [(num_bytes, count) for num_bytes, count, is_trained in parameters if is_trained]
    is_adaptive = optimizer.startswith(ADAPTIVE)
    states = 2 if is_adaptive else 0
    gradient_bytes = float(sum(num_bytes for num_bytes, _ in trainable))
    return {
        "gradient": Targets(len(trainable), gradient_bytes),
        "weight": Targets(len(parameters), float(sum(num_bytes for num_bytes, _, _ in parameters))),
        "moment": Targets(states * len(trainable), states * 4.0 * sum(count for _, count in trainable)),
        # Two consecutive steps per interval: a pace needs the update before.
        "update": Targets((5 if is_adaptive else 3) * len(trainable), 0.0, 2.0),
    }


def _activations(built: Built, batch_size: int, sequence_length: int, notes: list[str]) -> dict[str, Targets]:
    """What is recorded of modules, from a forward pass without memory; estimated if that is not possible."""
    modules = list(built.model.modules())
    attention = sum(type(one).__name__.endswith("Attention") for one in modules)
    leaf = sum(not list(one.children()) for one in modules)
    small = {"attention": Targets(4 * attention), "unit": Targets(leaf)}
    try:
        values, gradients = _seen(built, batch_size, sequence_length)
    except Exception as error:  # noqa: BLE001 - a model may do anything in its forward pass
        notes.append(f"Activations are estimated from the number of modules: the model could not be run ({error}).")
        values, gradients = {str(at): 0 for at in range(round(2.4 * len(modules)))}, {}
        gradients = {str(at): 0 for at in range(round(1.8 * len(modules)))}
    return {
        "activation": Targets(len(values), float(sum(values.values()))),
        "activation_gradient": Targets(len(gradients), float(sum(gradients.values()))),
        **{name: one for name, one in small.items() if one.rows},
    }


def _seen(built: Built, batch_size: int, sequence_length: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the names and bytes of all inputs and outputs of modules, and of those that have gradients."""
    from vario.backends.torch.memory_simulation.batches import example_batch
    from vario.backends.torch.memory_simulation.module_tensors import module_tensors

    batch = built.batch
    if batch is None:
        batch = example_batch(built.model, batch_size, sequence_length, False)
    return module_tensors(built.model, batch)


def _volume(quantity: str, one: Targets, steps: int, retention: Options) -> QuantityVolume:
    every = 1 if quantity == "scalar" else 10 if quantity == "checksum" else default_every(quantity)
    recorded = max(1.0, steps * one.watched / every)
    row_bytes = ROW_BYTES.get(quantity, 24.0)
    full = recorded * one.rows * row_bytes
    has_rollups = recorded * one.rows >= ROLLUP_MIN_ROWS
    fine = _buckets(recorded, None) if has_rollups else []
    all_bytes = full + sum(fine) * one.rows * ROLLUP_ROW_BYTES
    all_files = _files(recorded, one.rows) + _rollup_files(fine)
    kept_bytes, files = all_bytes, all_files
    tiers = tiers_of(retention, quantity)
    if tiers is not None and has_rollups and full > tiers.bytes:
        kept = _kept_steps(recorded, one, row_bytes, every, tiers)
        coarse = _buckets(recorded, FINE_BUCKETS)
        kept_bytes = min(full, kept * one.rows * row_bytes) + sum(coarse) * one.rows * ROLLUP_ROW_BYTES
        files = _files(kept, one.rows) + _rollup_files(coarse)
    return QuantityVolume(
        quantity,
        one.rows,
        every,
        one.rows * one.watched / every,
        all_bytes,
        min(kept_bytes, all_bytes),
        all_files,
        min(files, all_files),
        one.tensor_bytes * one.watched / every,
    )


def _kept_steps(recorded: float, one: Targets, row_bytes: float, every: int, tiers: Tiers) -> float:
    """The steps whose rows stay: the newest, and one in so many; what happens during training comes on top."""
    newest = max(float(tiers.steps), tiers.bytes * 1.06 / (one.rows * row_bytes))
    return min(recorded, newest + recorded * max(1.0, every / one.watched) / max(tiers.every, every))


def _buckets(recorded: float, fine: int | None) -> list[float]:
    """The buckets of each level; with `fine`, about that many of the newest where a coarser level is there."""
    found: list[float] = []
    buckets = recorded / BUCKET_STEPS
    while buckets >= 1:
        found.append(buckets)
        buckets /= COARSER
    if fine is None:
        return found
    # A level is dropped in pieces as long as a file of the next one.
    most = fine + COARSER * ROLLUP_FILE_BUCKETS
    return [min(one, most) if at < len(found) - 1 else one for at, one in enumerate(found)]


def _rollup_files(buckets: list[float]) -> int:
    return round(sum(1 + one / ROLLUP_FILE_BUCKETS for one in buckets))


def _files(recorded: float, rows: float) -> int:
    step_bytes = max(1.0, rows) * STREAM_ROW_BYTES
    part_steps = min(max(PART_STEPS, SMALL_PART_BYTES / step_bytes), PART_BYTES / step_bytes)
    return max(1, round(recorded / max(part_steps, MERGED_ROWS / max(1.0, rows))))
