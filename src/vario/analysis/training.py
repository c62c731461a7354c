"""Manual checks inside a training loop: a few numbers every N steps, nothing stored on disk.

Use `vario.watch` to record a run; this is for printing in a loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vario.analysis.health import GradientHealth, judge
from vario.analysis.parameters import GIB, model_summary
from vario.core.errors import ConfigError
from vario.core.process.switch import is_off


@dataclass(frozen=True)
class TrainingMetrics:
    """One check of a training loop; memory in GB (2**30 bytes), 0 without a GPU."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    gpu_memory_used: float
    gpu_memory_total: float


def get_gpu_memory_info() -> dict[str, Any]:
    """Return used_gb, free_gb and total_gb of the current GPU, for all processes, and its name as `device`.

    If torch sees no GPU, all three are 0 and `device` says so.
    """
    from vario.backends.torch.gpu_memory import gpu_memory

    memory = gpu_memory()
    if memory is None:
        return {"used_gb": 0.0, "free_gb": 0.0, "total_gb": 0.0, "device": "no GPU is visible to torch"}
    return {
        "used_gb": memory.used_bytes / GIB,
        "free_gb": memory.free_bytes / GIB,
        "total_gb": memory.total_bytes / GIB,
        "device": memory.device_name,
    }


class TrainingMonitor:
    """Counts the steps of a loop and checks every `check_every`-th of them."""

    def __init__(self, model: Any, check_every: int = 100) -> None:
        if not isinstance(check_every, int) or isinstance(check_every, bool) or check_every < 1:
            raise ConfigError(f"check_every: expected a whole number of at least 1, got {check_every!r}")
        self.model = model
        self.check_every = check_every
        self.num_steps = 0
        self.history: list[TrainingMetrics] = []
        """All checks so far."""
        self.health: GradientHealth | None = None
        """The gradients at the last check."""
        model_summary(model)  # raise for something that is not a model now, not at the hundredth step

    def get_model_summary(self) -> dict[str, Any]:
        """Return how many parameters the model has, and the memory to train it in fp16, in GB."""
        summary = model_summary(self.model)
        state = summary.state_bytes("fp16")
        return {
            "model": summary.model_name,
            "total_parameters": summary.num_parameters,
            "trainable_parameters": summary.num_trainable,
            "frozen_parameters": summary.num_frozen,
            "trainable_ratio": summary.trainable_share,
            "parameters_gb": state.parameters / GIB,
            "gradients_gb": state.gradients / GIB,
            "optimizer_gb": state.optimizer / GIB,
        }

    def step(self, loss: Any = math.nan, learning_rate: float = math.nan) -> TrainingMetrics | None:
        """Count a step, after backward() and before zero_grad(); returns metrics on every `check_every`-th step."""
        self.num_steps += 1
        if self.num_steps % self.check_every or is_off():
            return None
        from vario.backends.torch.reduce.model_gradients import gradient_rows

        self.health = judge(gradient_rows(self.model))
        memory = get_gpu_memory_info()
        seen = TrainingMetrics(
            step=self.num_steps,
            # torch warns about a loss that still has its graph.
            loss=float(loss.detach() if hasattr(loss, "detach") else loss),
            learning_rate=learning_rate,
            gradient_norm=self.health.norm,
            gpu_memory_used=memory["used_gb"],
            gpu_memory_total=memory["total_gb"],
        )
        self.history.append(seen)
        return seen
