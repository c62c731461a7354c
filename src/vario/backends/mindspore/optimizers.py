"""The state and the settings of MindSpore's optimizers, under the names that other frameworks use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Parameter, ParameterTuple, Tensor
from mindspore.graph.api import _no_grad

from vario.backends.mindspore.targets import Targets
from vario.backends.mindspore.tensors import is_on_host, on_host
from vario.backends.protocols.observing import Later, NamedTensors

_KNOWN = {
    "moment1": "exp_avg",
    "moments1": "exp_avg",
    "moment2": "exp_avg_sq",
    "moments2": "exp_avg_sq",
    "vhat": "max_exp_avg_sq",
    "moments": "momentum_buffer",
    "accum": "momentum_buffer",
}
"""MindSpore's attributes, and what the same state is called elsewhere; others keep their name."""
_NO_STATE = ("parameters", "_parameters", "params", "cache_enable", "stat")
OPTIONS = ("weight_decay", "eps")


def state_of(optimizer: Any) -> dict[str, Any]:
    """Return the state by name: per name a tuple of one tensor per parameter, in the optimizer's order."""
    parameters = optimizer.parameters
    found = {}
    groups = getattr(optimizer, "param_groups", None) or [{}]
    unused = () if any(group.get("amsgrad", True) for group in groups) else ("max_exp_avg_sq",)
    for key, value in vars(optimizer).items():
        if key in (*_NO_STATE, *unused) or not isinstance(value, ParameterTuple) or len(value) != len(parameters):
            continue
        if all(one.shape == parameter.shape for one, parameter in zip(value, parameters, strict=True)):
            found[_KNOWN.get(key, key)] = value
    return found


def moments(targets: Targets, optimizer: Any) -> NamedTensors:
    """Return names (`weight:exp_avg`) and values of an optimizer's state, for the chosen parameters."""
    if optimizer is None:
        return [], []
    names: list[str] = []
    tensors: list[Any] = []
    state = state_of(optimizer)
    for place, name, _ in targets.parameters_of(optimizer):
        for key, values in state.items():
            names.append(f"{name}:{key}")
            tensors.append(values[place])
    return names, tensors


def learning_rates(optimizer: Any) -> Later:
    """Return the learning rate of each group as of now, by a call that waits for it; NaN if it is unknown."""
    known = [_as_of_now(rate) for rate in _rates(optimizer)]

    def fetch() -> npt.NDArray[Any]:
        numbers = [_number(rate) for rate in known]
        # MindSpore keeps one rate per parameter: parameters with the same one are a group.
        return np.array(list(dict.fromkeys(numbers)) or [math.nan])

    return fetch


def rates_of_parameters(optimizer: Any, places: Sequence[int]) -> Later:
    """Return the learning rate of each of these parameters as of now, by a call that waits for them."""
    groups = getattr(optimizer, "param_groups", None)
    known = [_as_of_now(rate) for rate in _rates(optimizer)]
    if groups is not None:
        of_place = [number for number, group in enumerate(groups) for _ in group["params"]]
    else:
        of_place = list(range(len(known))) if len(known) == len(optimizer.parameters) else [0] * (max(places) + 1)

    def fetch() -> npt.NDArray[Any]:
        return np.array([_number(known[of_place[place]]) for place in places])

    return fetch


def num_updates(optimizer: Any) -> int:
    """Return how many updates an optimizer has made."""
    counter = getattr(optimizer, "global_step", getattr(optimizer, "state_step", None))
    return int(_number(counter)) if isinstance(counter, Tensor) else 0


def second_moment_settings(optimizer: Any) -> tuple[float, float] | None:
    """Return the decay of the second moment (0 if its bias is not corrected) and eps; None if there is no eps."""
    groups = getattr(optimizer, "param_groups", None)
    if groups:
        betas, eps = groups[0].get("betas"), groups[0].get("eps")
        return None if betas is None or eps is None else (_number(betas[1]), _number(eps))
    eps, beta = getattr(optimizer, "eps", None), getattr(optimizer, "beta2", None)
    if eps is None or beta is None:
        return None
    return _number(beta) if hasattr(optimizer, "beta2_power") else 0.0, _number(eps)


def _number(value: Any) -> float:
    return float(on_host(value).reshape(-1)[0] if isinstance(value, Tensor) else np.asarray(value).reshape(-1)[0])


def _as_of_now(rate: Any) -> Any:
    """Return a rate that stays as it is: a parameter changes in place when a schedule sets the next one."""
    if not isinstance(rate, Parameter):
        return rate
    if is_on_host():
        return on_host(rate).copy()
    with _no_grad():
        return rate * 1.0


def _rates(optimizer: Any) -> list[Any]:
    if hasattr(optimizer, "param_groups"):
        return [group["lr"] for group in optimizer.param_groups]
    with _no_grad():
        found = optimizer.get_lr()
    return list(found) if isinstance(found, (tuple, list)) else [found]


def settings(optimizer: Any) -> dict[str, float]:
    """Return options of an optimizer that stay constant in ordinary training."""
    options = optimizer.param_groups[0] if getattr(optimizer, "param_groups", None) else vars(optimizer)
    found = {}
    for name in OPTIONS:
        value = options.get(name)
        if isinstance(value, Tensor) and math.prod(value.shape) == 1:
            value = _number(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = float(value)
    return found


def scale_inside(optimizer: Any) -> float | None:
    """Return what an optimizer divides its gradients by itself (its `loss_scale`); None for 1."""
    scale = getattr(optimizer, "loss_scale", None)
    return float(scale) if isinstance(scale, (int, float)) and scale != 1 else None
