"""How many parameters a model has, where they are, and what training them keeps in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vario.core.errors import ConfigError
from vario.core.text import unknown

if TYPE_CHECKING:
    from vario.backends.torch.parameters import ParameterForm

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp16-mixed": 4, "bf16-mixed": 4}
"""Size of one weight at a precision; mixed precision computes in 16 bits and keeps its weights in 32."""

GIB = 1 << 30
"""What every `..._gb` here counts in, as GPU vendors and the sample outputs of others do."""


@dataclass(frozen=True)
class StateBytes:
    """What training keeps from step to step, in bytes: not activations, not what a step needs in passing."""

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
    forms: Sequence[ParameterForm]

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return sum(form.num_elements for form in self.forms)

    @property
    def num_trainable(self) -> int:
        """Those that need a gradient."""
        return sum(form.num_elements for form in self.forms if form.is_trainable)

    @property
    def num_frozen(self) -> int:
        """Those that do not."""
        return self.num_parameters - self.num_trainable

    @property
    def trainable_share(self) -> float:
        """From 0 to 1."""
        return self.num_trainable / max(self.num_parameters, 1)

    @property
    def is_sharded(self) -> bool:
        """Whether this rank holds only a part."""
        return any(form.num_elements_here < form.num_elements for form in self.forms)

    def state_bytes(self, precision: str) -> StateBytes:
        """What this rank keeps of weights, gradients and AdamW's two moments at a precision."""
        if precision not in ELEMENT_BYTES:
            raise ConfigError(unknown("precision", precision, ELEMENT_BYTES))
        width = ELEMENT_BYTES[precision]
        weights = trained = 0
        for form in self.forms:
            # Quantized and whole-number weights stay as they are, whatever the rest is computed in.
            keeps_its_size = form.is_packed or not form.is_floating
            num_bytes = form.bytes_here if keeps_its_size else form.num_elements_here * width
            weights += num_bytes
            trained += num_bytes if form.is_trainable else 0
        return StateBytes(parameters=weights, gradients=trained, optimizer=2 * trained)


def model_summary(model: Any) -> ModelSummary:
    """The parameters of a model; tied ones are found once, sharded and packed ones at their real size."""
    from vario.backends.torch.naming import unwrap
    from vario.backends.torch.parameters import parameter_forms

    forms = parameter_forms(model)
    return ModelSummary(type(unwrap(model)).__name__, forms)


def count_parameters(model: Any, trainable_only: bool = False) -> int:
    """How many parameters a model has: shared ones count once, sharded and quantized ones in full."""
    summary = model_summary(model)
    return summary.num_trainable if trainable_only else summary.num_parameters


def get_parameter_breakdown(model: Any) -> list[dict[str, Any]]:
    """One entry per parameter, in model order: name, params, dtype, shape, trainable, device, share of all."""
    summary = model_summary(model)
    total = max(summary.num_parameters, 1)
    return [
        {
            "name": form.name,
            "params": form.num_elements,
            "dtype": form.dtype,
            "shape": form.shape,
            "trainable": form.is_trainable,
            "device": form.device,
            "share": form.num_elements / total,
        }
        for form in summary.forms
    ]


def state_bytes(model: Any, precision: str = "fp16") -> StateBytes:
    """Bytes of weights, gradients and AdamW's moments: fp32, fp16, bf16, or fp16-mixed and bf16-mixed.

    Frozen parameters have neither gradient nor moments. Of a sharded model it is what this rank holds.
    """
    return model_summary(model).state_bytes(precision)


def format_param_count(count: int) -> str:
    """A number of parameters in short: 1.50B, 7.00M, 3.00K, 999."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        # Not `count >= size`: 999,999 is 1.00M, for the unit below would show it as 1000.00K.
        if round(count / (size // 1000), 2) >= 1000:
            return f"{count / size:.2f}{unit}"
    return str(count)
