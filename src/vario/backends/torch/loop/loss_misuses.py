"""Losses whose inputs do not fit them, from the graph of a loss: no value is read.

A few nodes below each loss function tell what its input is: another softmax, raw outputs, more elements than there are
predictions. Anything unknown in between is taken to be right.
"""

from __future__ import annotations

from typing import Any

SOFTMAX_TWICE, SIGMOID_TWICE, RAW_OUTPUTS, PROBABILITIES, BROADCAST = (
    "softmax_twice",
    "sigmoid_twice",
    "raw_outputs",
    "probabilities",
    "broadcast",
)
_VIEWS = frozenset(
    f"{name}Backward{number}"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze", "ToCopy"),
        *("Slice", "Select", "Index", "IndexSelect", "Clone", "Alias", "Cat", "Contiguous"),
    )
    for number in range(6)
)
"""What changes the shape of a tensor, its dtype or the choice of its elements, and no number in it."""
_LAYERS = frozenset(
    f"{name}Backward0"
    for name in (
        *("Addmm", "Mm", "Bmm", "Convolution", "Linear", "Relu", "Gelu", "Silu", "Tanh", "Sigmoid"),
        *("NativeLayerNorm", "NativeBatchNorm", "NativeDropout"),
    )
)
"""What a model ends with if it returns raw outputs."""
_OF_LOGARITHMS = frozenset({"NllLossBackward0", "NllLoss2DBackward0", "CtcLossBackward0"})
_OF_NUMBERS = frozenset({"MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"})
_REDUCTIONS = frozenset(
    f"{name}Backward{number}"
    for name in ("Mean", "Sum", "Pow", "Abs", "Mul", "Div", "Sqrt", "Neg")
    for number in range(2)
)
_OF_TERMS = frozenset({"AddBackward0", "SubBackward0"})
_PARAMETER = "torch::autograd::AccumulateGrad"
_MOST_VIEWS = 8
RANGES = {"SigmoidBackward0": (0.0, 1.0), "SoftmaxBackward0": (0.0, 1.0), "TanhBackward0": (-1.0, 1.0)}
"""What the outputs of a function are limited to."""


def misuse(node: Any, name: str) -> str:
    """Return how the loss function of this node is misused; empty if nothing is known to be wrong."""
    if name in _OF_LOGARITHMS:
        below = source(node)
        return PROBABILITIES if _name(below) == "SoftmaxBackward0" else RAW_OUTPUTS if _is_layer(below) else ""
    if name == "LogSoftmaxBackward0":
        return SOFTMAX_TWICE if _name(source(node)) == "SoftmaxBackward0" else ""
    if name == "BinaryCrossEntropyWithLogitsBackward0":
        return SIGMOID_TWICE if _name(source(node)) == "SigmoidBackward0" else ""
    if name in _OF_NUMBERS or name == "SubBackward0":
        return BROADCAST if _is_broadcast(node, name) else ""
    return ""


def is_passed(node: Any, name: str) -> bool:
    """Whether a loss may be computed from a difference below a node of this name: a reduction, or a sum of terms."""
    return name in _REDUCTIONS or (name in _OF_TERMS and _is_number(node))


def _is_number(node: Any) -> bool:
    try:
        return not node._input_metadata[0].shape
    except (AttributeError, IndexError, TypeError):
        return False  # a graph that this release describes in another way


def source(node: Any) -> Any:
    """Return what computed the first input of a node, whatever has changed its shape since."""
    below = node.next_functions[0][0] if node.next_functions else None
    for _ in range(_MOST_VIEWS):
        if below is None or below.name() not in _VIEWS or not below.next_functions:
            break
        below = below.next_functions[0][0]
    return below


def _name(node: Any) -> str:
    return "" if node is None else node.name()


def _is_layer(node: Any) -> bool:
    """Whether a node is a layer's output; a linear layer may add its bias, a parameter, by itself."""
    if _name(node) != "AddBackward0":
        return _name(node) in _LAYERS
    return any(_name(below) == _PARAMETER for below, _ in node.next_functions)


def _is_broadcast(node: Any, name: str) -> bool:
    """Whether N predictions of shape (N, 1) meet N constants of shape (N): each is compared with all."""
    if name == "SubBackward0":
        given = [(below, nth) for below, nth in node.next_functions if below is not None]
        if len(given) != 1 or len(node.next_functions) != 2:
            return False  # both are computed: all pairs may be meant
        (below, nth), whole = given[0], node._input_metadata[0].shape
    else:
        (below, nth), whole = node.next_functions[0], ()
    if _name(below) == "ExpandBackward0":
        whole = below._input_metadata[0].shape
        below, nth = below.next_functions[0]
    own = tuple(below._input_metadata[nth].shape)
    return len(whole) == 2 and whole[0] == whole[1] > 1 and own in ((whole[0], 1), (whole[0],), (1, whole[0]))
