"""Setups: how a model is trained. Fault runs and their twins share the ones below; healthy runs have their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

STEPS = 260
SCHEDULES = ("cosine", "wsd", "constant", "cosine")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that decides a healthy training, but for its seed."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    optimizer: str = "adamw"
    lr: float = 3e-3
    weight_decay: float = 0.05
    schedule: str = "cosine"
    warmup: int = 20
    precision: str = "fp32"
    """fp32, bf16 (autocast), bf16_parameters, fp16 (autocast, with a GradScaler)."""
    clip: float | None = 1.0
    batch: int = 8
    batch_ramp: int = 0
    """Over this many steps the batch grows from an eighth to its size."""
    accumulation: int = 1
    epoch_rows: int | None = None
    """Train over so many rows again and again; None: never see a row twice."""
    frozen: tuple[str, ...] = ()
    """Prefixes of parameters that do not train."""
    trained_before: int = 0
    """So many unwatched steps on another dialect come first: fine-tuning."""
    mix_change: int | None = None
    """From this step on half of the rows are of another dialect."""
    resume_at: int | None = None
    """Stop watching before this step and go on as a resumed run."""
    pace_seconds: float = 0.0
    """The least time a forward pass takes, as where a device does the work."""
    steps: int = STEPS

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options), "frozen": list(self.frozen)}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Setup:
        return Setup(**{**content, "frozen": tuple(content["frozen"])})

    def batch_at(self, step: int) -> int:
        """Rows of one micro-step on one rank."""
        if step >= self.batch_ramp:
            return self.batch
        return max(1, math.ceil(self.batch * (0.125 + 0.875 * step / self.batch_ramp)))

    def rows_needed(self) -> int:
        rows = sum(self.batch_at(step) for step in range(self.steps)) + self.batch * self.trained_before
        return self.epoch_rows or (rows + 4 * self.batch) * self.ranks * self.accumulation

    def rate_at(self, step: float) -> float:
        """The learning rate that belongs to a step."""
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        if self.schedule == "cosine":
            return self.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        if self.schedule == "wsd":
            return self.lr * min(1.0, max(0.02, (1 - done) / 0.25))
        if self.schedule == "restart":
            return self.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * ((2 * done) % 1))))
        assert self.schedule == "constant"
        return self.lr


TEXT: dict[str, Any] = {"model": "transformer", "options": {"layers": 2}}

SETUPS: dict[str, Setup] = {
    "mlp": Setup(model="mlp", batch=16),
    "mlp-sgd": Setup(model="mlp", batch=16, optimizer="sgd", lr=0.05, weight_decay=0.0),
    "mlp-fp16": Setup(model="mlp", batch=16, precision="fp16", options={"layers": 2}),
    "mlp-slow": Setup(model="mlp", batch=16, optimizer="adam", lr=4e-4, weight_decay=0.0),
    "cnn": Setup(model="cnn", batch=16),
    "cnn-sgd": Setup(model="cnn", batch=16, optimizer="sgd", lr=0.05, weight_decay=1e-4),
    "transformer": Setup(**TEXT),
    "transformer-relu": Setup(model="transformer", options={"layers": 2, "act": "relu"}, optimizer="adam"),
    "transformer-bf16": Setup(**TEXT, precision="bf16"),
    "transformer-fp16": Setup(**TEXT, precision="fp16"),
    "transformer-drop": Setup(model="transformer", options={"layers": 2, "dropout": 0.1}),
    "transformer-tied": Setup(model="transformer", options={"layers": 2, "tied": True}),
    "transformer-accumulating": Setup(**TEXT, accumulation=2, batch=4),
    "rnn": Setup(model="rnn", lr=5e-3),
    "rnn-lstm": Setup(model="rnn", options={"cell": "lstm"}, optimizer="adam", lr=5e-3),
    "moe": Setup(model="moe", options={"layers": 2}),
    "transformer-4": Setup(**TEXT, ranks=4),
    "cnn-4": Setup(model="cnn", batch=12, ranks=4),
    "mlp-4": Setup(model="mlp", batch=12, ranks=4, optimizer="sgd", lr=0.05, weight_decay=0.0),
    "rnn-4": Setup(model="rnn", ranks=4, lr=5e-3),
    "mlp-paced-4": Setup(model="mlp", batch=12, ranks=4, pace_seconds=0.02),
}


def nth_of(seed: int) -> int:
    """A small number that tells the zoo's seeds apart: 0, 1, then 2, 3 for 100, 101, 4, 5 for 200, 201 and so on."""
    return seed % 100 + 2 * (seed // 100)


def setup_for(name: str, seed: int) -> Setup:
    """A named setup as one seed trains it: the schedule, warm-up and depth differ from seed to seed."""
    nth, base = nth_of(seed), SETUPS[name]
    options = dict(base.options)
    if base.model in ("transformer", "mlp") and base.ranks == 1 and nth % 4 == 1:
        options["layers"] = options.get("layers", 3) + 1
    return replace(base, options=options, schedule=SCHEDULES[nth % 4], warmup=(20, 30, 10, 25)[nth % 4])
