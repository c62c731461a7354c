"""Healthy runs: what people really do, with nothing wrong. Those that are not held out may be looked at for tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from zoo.record import RUNS, Job, Recorded, found_run
from zoo.setups import SETUPS, Setup

TUNE_SEED, HELD_OUT_SEED = 10, 310


@dataclass(frozen=True)
class Healthy:
    """A training with nothing wrong."""

    name: str
    setup: Setup
    is_held_out: bool = False
    is_benign_change: bool = False
    """Something changes on purpose in the middle: reported apart."""

    @property
    def job(self) -> Job:
        return Job(f"healthy-{self.name}", self.setup, HELD_OUT_SEED if self.is_held_out else TUNE_SEED)


def _of(base: str, **changes: object) -> Setup:
    return replace(SETUPS[base], **changes)  # type: ignore[arg-type]


def _text(**options: object) -> dict[str, object]:
    return {"options": {"layers": 2, **options}}


TUNE = {
    "text-cosine": _of("transformer", warmup=40),
    "text-wsd": _of("transformer-relu", schedule="wsd"),
    "text-batch-2": _of("transformer", batch=2, schedule="constant"),
    "text-dropout": _of("transformer-drop", schedule="wsd"),
    "text-fp16": _of("transformer-fp16"),
    "text-bf16-parameters": _of("transformer", precision="bf16_parameters", schedule="constant"),
    "text-fine-tuning": _of("transformer", trained_before=150, lr=1e-4, schedule="constant", warmup=5),
    "text-epochs": _of("transformer", epoch_rows=400, schedule="constant"),
    "text-batch-ramp": _of("transformer-relu", batch=32, batch_ramp=150),
    "moe-cosine": _of("moe"),
    "rnn-constant": _of("rnn", schedule="constant"),
    "cnn-sgd-wsd": _of("cnn-sgd", schedule="wsd", warmup=10),
    "cnn-batch-64": _of("cnn", batch=64),
    "mlp-constant": _of("mlp", schedule="constant", warmup=0),
    "mlp-resumed": _of("mlp-sgd", resume_at=140),
    "text-4-ranks": _of("transformer-4"),
    "cnn-2-ranks": _of("cnn-4", ranks=2),
    "text-constant": _of("transformer", schedule="constant", warmup=10, lr=2e-3, **_text(act="relu")),
    "text-deep": _of("transformer", options={"layers": 3, "width": 24}, schedule="wsd", warmup=60),
    "text-batch-3": _of("transformer-relu", batch=3),
    "text-dropout-20": _of("transformer-drop", **_text(dropout=0.2)),
    "text-bf16": _of("transformer-bf16", schedule="wsd"),
    "text-tied-accumulating": _of("transformer-tied", accumulation=4, batch=4, schedule="constant"),
    "text-frozen-backbone": _of("transformer", trained_before=150, lr=5e-4, frozen=("tokens", "positions", "blocks.0")),
    "mlp-fine-tuning": _of("mlp", trained_before=150, lr=1e-4, schedule="constant", warmup=5),
    "cnn-epochs": _of("cnn", epoch_rows=320, schedule="wsd"),
    "mlp-batch-ramp": _of("mlp", batch=64, batch_ramp=120, schedule="constant"),
    "moe-wsd": _of("moe", schedule="wsd", warmup=40, batch=12),
    "rnn-lstm-cosine": _of("rnn-lstm", warmup=50),
    "rnn-batch-4": _of("rnn", batch=4, schedule="wsd"),
    "cnn-fp32-cosine": _of("cnn", batch=24, options={"dropout": 0.1}),
    "mlp-fp16": _of("mlp-fp16", schedule="wsd"),
    "text-resumed": _of("transformer", resume_at=120, schedule="constant"),
    "mlp-4-ranks": _of("mlp-4", schedule="wsd"),
    "rnn-2-ranks": _of("rnn-4", ranks=2, schedule="constant"),
    "cnn-4-ranks": _of("cnn-4", options={"width": 8}),
    "text-short-warmup": _of("transformer", warmup=5, lr=1.5e-3, clip=None),
    "text-wide": _of("transformer", options={"layers": 2, "width": 48}, schedule="wsd", warmup=25, batch=6),
    "text-batch-1": _of("transformer", batch=1, lr=1e-3),
    "text-dropout-30": _of("transformer-drop", **_text(dropout=0.3), schedule="constant"),
    "text-bf16-cosine": _of("transformer-bf16", batch=16, warmup=35),
    "text-fp16-relu": _of("transformer-fp16", **_text(act="relu"), schedule="wsd"),
    "text-tied-wsd": _of("transformer-tied", schedule="wsd", weight_decay=0.1),
    "text-accumulating": _of("transformer-accumulating", accumulation=3, schedule="constant"),
    "text-frozen-head": _of("transformer", trained_before=120, lr=3e-4, frozen=("head",)),
    "text-few-epochs": _of("transformer-relu", epoch_rows=600, schedule="cosine"),
    "moe-small-batch": _of("moe", batch=4, schedule="constant", warmup=15),
    "moe-fine-tuning": _of("moe", trained_before=150, lr=2e-4, schedule="constant", warmup=5),
    "rnn-lstm-wsd": _of("rnn-lstm", schedule="wsd", batch=12),
    "rnn-resumed": _of("rnn", resume_at=160),
    "cnn-sgd-constant": _of("cnn-sgd", schedule="constant", warmup=0, batch=32),
    "cnn-batch-ramp": _of("cnn", batch=48, batch_ramp=140, schedule="wsd"),
    "mlp-sgd-cosine": _of("mlp-sgd", warmup=0, batch=8),
    "mlp-slow": _of("mlp-slow", schedule="wsd"),
    "mlp-epochs": _of("mlp", epoch_rows=256, batch=8, lr=1e-3),
    "text-2-ranks": _of("transformer-4", ranks=2, schedule="wsd"),
    "cnn-4-ranks-wsd": _of("cnn-4", schedule="wsd", batch=6),
    "mlp-paced-4-ranks": _of("mlp-paced-4", schedule="constant"),
}

HELD_OUT = {
    "text-long-warmup": _of("transformer", warmup=90, lr=4e-3),
    "text-narrow": _of("transformer", options={"layers": 4, "width": 16}, schedule="wsd"),
    "text-batch-24": _of("transformer-relu", batch=24, schedule="constant", warmup=30),
    "text-no-decay": _of("transformer", weight_decay=0.0, schedule="wsd", lr=2e-3),
    "text-dropout-cosine": _of("transformer-drop", **_text(dropout=0.15), warmup=15),
    "text-bf16-small": _of("transformer-bf16", batch=4, schedule="constant"),
    "text-fp16-wsd": _of("transformer-fp16", schedule="wsd", warmup=40),
    "text-tied-relu": _of("transformer-tied", **_text(tied=True, act="relu"), warmup=12),
    "text-accumulating-2": _of("transformer-accumulating", schedule="wsd"),
    "text-tuned-slowly": _of("transformer", trained_before=200, lr=3e-5, schedule="constant", warmup=0),
    "text-many-epochs": _of("transformer", epoch_rows=200, schedule="wsd"),
    "moe-large-batch": _of("moe", batch=16, warmup=35),
    "moe-constant": _of("moe", schedule="constant", warmup=20, lr=2e-3),
    "rnn-wsd": _of("rnn", schedule="wsd", warmup=15, lr=4e-3),
    "rnn-lstm-resumed": _of("rnn-lstm", resume_at=130, schedule="constant"),
    "cnn-small-batch": _of("cnn", batch=8, schedule="constant"),
    "cnn-sgd-cosine": _of("cnn-sgd", warmup=25, batch=24),
    "mlp-sgd-ramp": _of("mlp-sgd", batch=48, batch_ramp=100),
    "mlp-wide": _of("mlp", options={"layers": 3, "width": 64}, schedule="wsd"),
    "mlp-fp16-constant": _of("mlp-fp16", schedule="constant", warmup=10),
    "text-4-ranks-wsd": _of("transformer-4", schedule="wsd", batch=6),
    "rnn-4-ranks": _of("rnn-4", warmup=30),
    "mlp-2-ranks": _of("mlp-4", ranks=2, schedule="constant"),
}

BENIGN = {
    "text-mix-change": (_of("transformer", mix_change=130), False),
    "text-lr-restart": (_of("transformer", schedule="restart"), False),
    "rnn-mix-change": (_of("rnn", mix_change=110, schedule="constant"), False),
    "cnn-lr-restart": (_of("cnn-sgd", schedule="restart"), False),
    "text-relu-mix-change": (_of("transformer-relu", mix_change=150, schedule="constant"), False),
    "mlp-lr-restart": (_of("mlp", schedule="restart"), False),
    "moe-mix-change": (_of("moe", mix_change=140), True),
    "transformer-lr-restart": (_of("transformer-relu", schedule="restart", warmup=10), True),
}

ALL = [
    *(Healthy(name, setup) for name, setup in TUNE.items()),
    *(Healthy(name, setup, is_held_out=True) for name, setup in HELD_OUT.items()),
    *(Healthy(name, setup, held_out, is_benign_change=True) for name, (setup, held_out) in BENIGN.items()),
]


def healthy_runs(is_held_out: bool, is_benign_change: bool = False, runs: Path = RUNS) -> list[Recorded]:
    """Recorded healthy runs of one half."""
    chosen = [each for each in ALL if (each.is_held_out, each.is_benign_change) == (is_held_out, is_benign_change)]
    found = [found_run(each.job, runs=runs) for each in chosen]
    return [run for run in found if run is not None]
