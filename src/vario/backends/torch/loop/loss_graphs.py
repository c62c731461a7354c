"""The graph of a loss, read before backward goes through it: operations, their plain arguments, parameters they use.

No tensor is read but numbers of the program that torch wraps, such as the divisor in `logits / 0.07`: they are on the
host. Nothing that hooks packed is unpacked, and graphs of compiled or custom functions are single operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple

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


class _Kind(NamedTuple):
    """What all operations of one kind have in common."""

    name: str
    is_leaf: bool
    """Whether it adds to the gradient of a parameter."""
    is_factor: bool
    arguments: tuple[tuple[str, str], ...]
    """Its plain arguments: the attribute, and what it is called."""


_kinds: dict[type, _Kind] = {}
"""torch has a type for nearly each kind of operation."""


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
    kinds = {node: _kind_of(node) for node in below}
    leaves = {node: names.get(id(node.variable), "") for node, kind in kinds.items() if kind.is_leaf}
    operations: list[str] = []
    parameters: list[str] = []
    constants: list[Constant] = []
    # By their numbers: in the order in which the forward pass ran.
    for node in sorted(kinds.keys() - leaves.keys(), key=_number):
        kind, inputs = kinds[node], below[node]
        constants += _constants(node, kind, inputs, len(operations))
        operations.append(kind.name)
        parameters.append(next((name for each, _ in inputs if (name := leaves.get(each, ""))), ""))
    return LossGraph(tuple(operations), tuple(parameters), tuple(constants), perf_counter() - began)


def _number(node: Any) -> int:
    number: int = node._sequence_nr()
    return number


def _kind_of(node: Any) -> _Kind:
    known = _kinds.get(type(node))
    if known is None:
        name = node.name()
        known = _Kind(name, name == _PARAMETER, name in _FACTORS, _plain_arguments(type(node)))
        if type(node).__name__ == name or known.is_leaf:  # others share a type, and differ in their names
            _kinds[type(node)] = known
    return known


def _constants(node: Any, kind: _Kind, inputs: Any, at: int) -> list[Constant]:
    found = []
    if len(inputs) > 1:
        # A branch that is detached may still reach the loss another way: then no operation is gone.
        found.append(Constant(at, INPUTS, float(sum([each is not None for each, _ in inputs]))))
    for argument, name in kind.arguments:
        value = getattr(node, argument, None)
        if isinstance(value, (bool, int, float)) and abs(value) < 1e15:
            found.append(Constant(at, name, float(value)))
    if kind.is_factor and len(inputs) == 2 and (inputs[0][0] is None) != (inputs[1][0] is None):
        factor = _factor(node, "_saved_self" if inputs[0][0] is None else "_saved_other")
        if factor is not None:
            found.append(Constant(at, "factor", factor))
    return found


def _plain_arguments(operation: type) -> tuple[tuple[str, str], ...]:
    # Tensors have a raw form beside the one that unpacks them. Contexts of custom functions may hold anything.
    is_custom = issubclass(operation, torch.autograd.function.BackwardCFunction)
    return tuple(
        (name, name.removeprefix("_saved_"))
        for name in (() if is_custom else dir(operation))
        if name.startswith("_saved_")
        and not hasattr(operation, f"_raw{name}")
        and not any(word in name for word in _VARYING)
    )


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
