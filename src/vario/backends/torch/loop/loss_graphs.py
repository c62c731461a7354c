"""The graph of a loss, read before backward goes through it: operations, their plain arguments, parameters they use.

No tensor is read but numbers of the program that torch wraps, such as the divisor in `logits / 0.07`: they are on the
host. Nothing that hooks packed is unpacked, and graphs of compiled or custom functions are single operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch

from vario.backends.protocols.loss_graphs import INPUTS, Constant, LossGraph

MOST_NODES = 6000
_PARAMETER = "torch::autograd::AccumulateGrad"
_FACTORS = ("MulBackward0", "DivBackward0")
_VARYING = (
    *("size", "sym", "numel", "offset", "start", "end", "index", "seed", "rng", "philox", "step", "stride", "layout"),
    *("options", "max_q", "max_k", "max_seqlen", "num_splits", "padding_idx", "weights", "has_bias", "is_target"),
)
"""Parts of names of arguments that go with the shape of the batch, or are no numbers of the program."""
_arguments: dict[type, tuple[str, ...]] = {}
"""The plain arguments of each kind of operation; torch has one type for each."""


def graph_of(loss: torch.Tensor, names: Mapping[int, str]) -> LossGraph | None:
    """Return what a loss was computed by; None if it is too large, or if this release describes it in another way."""
    try:
        return _read_graph(loss, names)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None


def _read_graph(loss: torch.Tensor, names: Mapping[int, str]) -> LossGraph | None:
    """Read a graph; `names` are those of parameters, by their ids."""
    began = perf_counter()
    below: dict[Any, Any] = {}
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in below:
            continue
        if len(below) == MOST_NODES:
            return None
        inputs = below[node] = node.next_functions
        waiting += [each for each, _ in inputs]
    operations: list[str] = []
    parameters: list[str] = []
    constants: list[Constant] = []
    # By their numbers: in the order in which the forward pass ran.
    for node in sorted(below, key=_number):
        kind = node.name()
        if kind == _PARAMETER:
            continue
        constants += _constants(node, kind, below[node], len(operations))
        operations.append(kind)
        parameters.append(next(filter(None, (_parameter(each, names) for each, _ in below[node])), ""))
    return LossGraph(tuple(operations), tuple(parameters), tuple(constants), perf_counter() - began)


def _number(node: Any) -> int:
    number: int = node._sequence_nr()
    return number


def _parameter(node: Any, names: Mapping[int, str]) -> str:
    return names.get(id(node.variable), "") if node is not None and node.name() == _PARAMETER else ""


def _constants(node: Any, kind: str, inputs: Any, at: int) -> list[Constant]:
    found = []
    if len(inputs) > 1:
        # A branch that is detached may still reach the loss another way: then no operation is gone.
        found.append(Constant(at, INPUTS, float(sum(each is not None for each, _ in inputs))))
    for name in _plain_arguments(node):
        value = getattr(node, name, None)
        if isinstance(value, (bool, int, float)) and abs(value) < 1e15:
            found.append(Constant(at, name.removeprefix("_saved_"), float(value)))
    if kind in _FACTORS and len(inputs) == 2 and (inputs[0][0] is None) != (inputs[1][0] is None):
        factor = _factor(node, "_saved_self" if inputs[0][0] is None else "_saved_other")
        if factor is not None:
            found.append(Constant(at, "factor", factor))
    return found


def _plain_arguments(node: Any) -> tuple[str, ...]:
    known = _arguments.get(type(node))
    if known is None:
        # Tensors have a raw form beside the one that unpacks them. Contexts of custom functions may hold anything.
        is_custom = isinstance(node, torch.autograd.function.BackwardCFunction)
        known = _arguments[type(node)] = tuple(
            name
            for name in (() if is_custom else dir(type(node)))
            if name.startswith("_saved_")
            and not hasattr(type(node), f"_raw{name}")
            and not any(word in name for word in _VARYING)
        )
    return known


def _factor(node: Any, side: str) -> float | None:
    """Return the number of the program that a tensor was multiplied with or divided by, if it is one."""
    saved = getattr(node, f"_raw{side}", None)
    if saved is None or getattr(saved, "unpack_hook", saved) is not None:
        return None
    try:
        factor = getattr(node, side)
    except RuntimeError:
        return None  # it was changed since
    if factor is None or factor.dim() or not factor.is_cpu or type(factor) is not torch.Tensor:
        return None
    return float(factor.item())
