"""The current gradients of a torch model, reduced in one pass."""

from __future__ import annotations

from typing import Any

import torch

from vario.backends.gradient_rows import GradientRows
from vario.backends.torch import naming
from vario.backends.torch.reduce.summaries import TorchSummaries
from vario.core.errors import ModelError
from vario.core.records import COLUMNS

_EVERYTHING = frozenset(COLUMNS)


def gradient_rows(model: Any) -> GradientRows:
    """Return one Summary per gradient: the list is reduced at once, and copied from its device at once."""
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    gradients: dict[str, torch.Tensor] = {}
    missing: list[str] = []
    num_frozen = 0
    for name, parameter in naming.named_parameters(naming.unwrap(model)):
        gradient = parameter.grad
        if gradient is not None:
            gradients[name] = gradient
        elif parameter.requires_grad:
            missing.append(name)
        else:
            num_frozen += 1
    # Exact zeros: a gradient of 1e-9 is small, not absent.
    summaries = TorchSummaries(0.0, _EVERYTHING)
    rows = summaries.observe_many(list(gradients.values()))
    table = summaries.collect()()
    names = [name for name, row in zip(gradients, rows, strict=True) if row is not None]
    unread = [name for name, row in zip(gradients, rows, strict=True) if row is None]
    return GradientRows(names, table[[row for row in rows if row is not None]], missing, num_frozen, unread)
