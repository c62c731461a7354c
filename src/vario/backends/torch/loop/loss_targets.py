"""What a loss compares with: labels and targets that a model is never called with, from the graph of the loss.

Torch's criteria save their target for backward. Only a few nodes below the loss are looked at, and nothing that hooks
packed when it was saved: unpacking it may compute a checkpoint again, or copy it back to a device.
"""

from __future__ import annotations

from typing import Any

import torch

from vario.backends.protocols.losses import Compared, LossTarget
from vario.backends.torch.loop import loss_misuses
from vario.backends.torch.reduce.input_samples import input_samples

_MEAN = 1
"""Torch's internal value of `reduction="mean"`."""
_MOST_NODES, _MOST_TARGETS = 24, 3
_OF_CLASSES = frozenset({"NllLossBackward0", "NllLoss2DBackward0"})
_OF_TWO = frozenset({"BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyBackward0"})
_OF_NUMBERS = frozenset({"MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"})
_CRITERIA = _OF_CLASSES | _OF_TWO | _OF_NUMBERS
_FACTORS = frozenset({"DivBackward0", "MulBackward0"})
"""What a loop does to a loss before backward that leaves it one term."""


def compared_by(loss: torch.Tensor) -> Compared:
    """Start reading a sample of each target that a loss is computed from, in the order of its terms."""
    found: list[LossTarget] = []
    misuses: list[str] = []
    waiting: list[tuple[Any, bool, bool]] = [(loss.grad_fn, True, True)]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES and len(found) < _MOST_TARGETS:
        node, is_alone, is_near = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        if (name != "SubBackward0" or is_near) and (wrong := _misuse(node, name)):
            misuses.append(wrong)
        if name not in _CRITERIA:
            is_near = is_near and loss_misuses.is_passed(node, name)
            waiting += [(below, is_alone and name in _FACTORS, is_near) for below, _ in node.next_functions]
            continue
        if name in _OF_CLASSES:
            waiting.append((node.next_functions[0][0], False, False))  # its log-softmax
        if (target := _target(node, name, len(found), is_alone)) is not None:
            found.append(target)
    return Compared(tuple(found), tuple(misuses))


def _misuse(node: Any, name: str) -> str:
    try:
        return loss_misuses.misuse(node, name)
    except (AttributeError, IndexError, TypeError):
        return ""  # a graph that this release describes in another way


def _target(node: Any, name: str, number: int, is_alone: bool) -> LossTarget | None:
    saved = getattr(node, "_raw_saved_target", None)
    # Where this release does not say whether hooks packed it, it is left alone.
    if saved is None or getattr(saved, "unpack_hook", saved) is not None:
        return None
    try:
        target = node._saved_target
        is_mean = node._saved_reduction == _MEAN
        num_classes = _num_classes(node, name)
    except (RuntimeError, AttributeError):
        return None  # it was changed since, or its graph is gone
    if target is None or target.requires_grad:
        return None
    samples = input_samples(((target,), {}))
    if not samples:
        return None
    kind = "squares" if name == "MseLossBackward0" else "classes" if num_classes else "numbers"
    label = f"target.{number}" if number else "target"
    kind = kind if is_alone and is_mean else ""
    return LossTarget(label, samples[0][1], kind, num_classes, _limits(node) if name in _OF_NUMBERS else None)


def _limits(node: Any) -> tuple[float, float] | None:
    below = loss_misuses.source(node)
    if below is not None and below.name() == "ExpandBackward0":
        below = loss_misuses.source(below)
    return None if below is None else loss_misuses.RANGES.get(below.name())


def _num_classes(node: Any, name: str) -> int:
    if name in _OF_TWO:
        return 2
    if name not in _OF_CLASSES:
        return 0
    before, nth = node.next_functions[0]
    shape = before._input_metadata[nth].shape
    return int(shape[1] if len(shape) > 1 else shape[0])
