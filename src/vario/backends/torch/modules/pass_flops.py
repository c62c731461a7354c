"""Counts the floating-point operations that a training step needs for its model.

They are counted in the forward pass, operation by operation, as torch's own counter does. A product costs as much again
in backward for each of its factors that gets a gradient. So recomputed activations do not count: what the model needs,
not what the device does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from vario.backends.peak_flops import FLOAT8, FLOAT32, TF32

_aten = torch.ops.aten
_ATTENTION = ("attention",)
_WITH_SUMMAND = ("aten.addmm", "aten.baddbmm")
"""Products whose first argument is added to them."""


_SCALED_ATTENTION = tuple(
    getattr(_aten, f"_scaled_dot_product_{name}", None)
    for name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
"""torch's own formulas do not know that several heads of queries may share one of keys, or lack one of these."""


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    *batch, rows, width = map(int, query.shape)
    return 2 * math.prod(batch) * rows * int(key.shape[-2]) * (width + int(value.shape[-1]))


class PassFlops(TorchDispatchMode):
    """Counts while it is entered, and changes nothing."""

    supports_higher_order_operators = True
    """Otherwise torch raises where a model calls one, such as flex_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: defaultdict[str, float] = defaultdict(float)
        """Operations by precision."""
        self.failure: Exception | None = None
        """Why the operations of a pass could not be counted."""
        self._counts = False
        self._formulas: dict[Any, Callable[..., Any]] = {**flop_counter.flop_registry}
        self._formulas.update((own, _attention) for own in _SCALED_ATTENTION if own is not None)

    def begin(self) -> None:
        """Count from here on."""
        if not self._counts:
            self._counts = True
            self.__enter__()

    def end(self) -> None:
        """Count no longer."""
        if self._counts:
            self._counts = False
            # Below a mode that was entered since and not left it stays, and does nothing.
            if _get_current_dispatch_mode() is self:
                self.__exit__(None, None, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        if self._counts and self.failure is None:
            try:
                self._count(func, args, kwargs or {}, result)
            except Exception as error:  # noqa: BLE001 - the failure policy: a formula may not know this call
                self.failure = error
        return result

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        packet = getattr(func, "_overloadpacket", func)
        formula = self._formulas.get(packet)
        if formula is None:
            return
        name = str(packet)
        flops = float(formula(*args, **kwargs, out_val=result))
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
        factors = [tensor for tensor in tensors[name in _WITH_SUMMAND :] if tensor.dim() > 1]
        self.found[_precision(factors[0])] += flops * _passes(name, factors)


def _passes(name: str, factors: list[torch.Tensor]) -> int:
    """How many products of this size forward and backward need together."""
    trained = sum(_gets_gradient(factor) for factor in factors)
    if any(word in name for word in _ATTENTION):
        return 3 if trained else 1
    if trained and not torch.is_grad_enabled():
        return 3  # its forward will be computed again, with gradients
    return 1 + trained


def _gets_gradient(tensor: torch.Tensor) -> bool:
    origin = tensor if torch.is_grad_enabled() or tensor._base is None else tensor._base
    return origin.requires_grad


def _precision(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return FLOAT8
    if name == FLOAT32 and tensor.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return TF32
    return name
