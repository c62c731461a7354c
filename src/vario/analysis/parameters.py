"""Counts the parameters of a model and the memory to train them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vario.core.errors import ConfigError
from vario.core.text import unknown

if TYPE_CHECKING:
    from vario.backends.torch.parameters import ParameterSpec

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp16-mixed": 4, "bf16-mixed": 4}
"""Size of one weight at a precision; mixed precision computes in 16 bits and keeps its weights in 32."""

GIB = 1 << 30
"""The unit of every `..._gb` here, as GPU vendors use it."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes that training keeps from step to step: no activations, no temporary memory."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three."""
        return self.parameters + self.gradients + self.optimizer


@dataclass(frozen=True)
class ModelSummary:
    """The parameters of a model, each counted once."""

    model_name: str
    specs: Sequence[ParameterSpec]

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return sum(spec.num_elements for spec in self.specs)

    @property
    def num_trainable(self) -> int:
        """The number of trainable parameters."""
        return sum(spec.num_elements for spec in self.specs if spec.is_trainable)

    @property
    def num_frozen(self) -> int:
        """The number of frozen parameters."""
        return self.num_parameters - self.num_trainable

    @property
    def trainable_share(self) -> float:
        """From 0 to 1."""
        return self.num_trainable / max(self.num_parameters, 1)

    @property
    def is_sharded(self) -> bool:
        """Whether this rank has only a part."""
        return any(spec.num_elements_here < spec.num_elements for spec in self.specs)

    def state_bytes(self, precision: str) -> StateBytes:
        """Return the bytes of weights, gradients and AdamW's two moments on this rank at a precision."""
        if precision not in ELEMENT_BYTES:
            raise ConfigError(unknown("precision", precision, ELEMENT_BYTES))
        width = ELEMENT_BYTES[precision]
        weights = trained = 0
        for spec in self.specs:
            # Quantized and integer weights keep their size at any precision.
            keeps_its_size = spec.is_packed or not spec.is_floating
            num_bytes = spec.bytes_here if keeps_its_size else spec.num_elements_here * width
            weights += num_bytes
            trained += num_bytes if spec.is_trainable else 0
        return StateBytes(parameters=weights, gradients=trained, optimizer=2 * trained)


def model_summary(model: Any) -> ModelSummary:
    """Return the parameters of a model; tied ones count once, sharded and packed ones at their real size."""
    from vario.backends.torch.naming import unwrap
    from vario.backends.torch.parameters import parameter_specs

    specs = parameter_specs(model)
    return ModelSummary(type(unwrap(model)).__name__, specs)


def count_parameters(model: Any, trainable_only: bool = False) -> int:
    """Return how many parameters a model has: shared ones count once, sharded and quantized ones in full."""
    summary = model_summary(model)
    return summary.num_trainable if trainable_only else summary.num_parameters


def get_parameter_breakdown(model: Any) -> list[dict[str, Any]]:
    """Return one entry per parameter, in model order: name, params, dtype, shape, trainable, device, share of all."""
    summary = model_summary(model)
    total = max(summary.num_parameters, 1)
    return [
        {
            "name": spec.name,
            "params": spec.num_elements,
            "dtype": spec.dtype,
            "shape": spec.shape,
            "trainable": spec.is_trainable,
            "device": spec.device,
            "share": spec.num_elements / total,
        }
        for spec in summary.specs
    ]


def state_bytes(model: Any, precision: str = "fp16") -> StateBytes:
    """Return the bytes of weights, gradients and AdamW's moments for fp32, fp16, bf16, fp16-mixed or bf16-mixed.

    Frozen parameters have neither gradient nor moments. For a sharded model it is this rank's part.
    """
    return model_summary(model).state_bytes(precision)


def format_param_count(count: int) -> str:
    """Format a number of parameters: 1.50B, 7.00M, 3.00K, 999."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        # Not `count >= size`: 999,999 is 1.00M, since the smaller unit would show 1000.00K.
        if round(count / (size // 1000), 2) >= 1000:
            return f"{count / size:.2f}{unit}"
    return str(count)
