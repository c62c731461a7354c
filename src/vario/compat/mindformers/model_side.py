"""What callbacks read from a `mindspore.train.Model`: the outputs of its training cell, its rate, its experts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.compat.mindformers.settings import LossMonitorSettings


class Outputs:
    """The numbers of one step."""

    def __init__(
        self,
        loss: Any = None,
        learning_rate: Any = None,
        grad_norm: Any = None,
        loss_scale: Any = None,
        overflow: Any = False,
    ) -> None:
        self.loss = mean_of(loss)
        self.learning_rate = mean_of(learning_rate)
        self.grad_norm = mean_of(grad_norm)
        self.loss_scale = mean_of(loss_scale)
        self.overflow = bool(mean_of(overflow) or False)

    @classmethod
    def of_model(cls, outputs: Any) -> Outputs:
        """Read what a training cell returned: the loss, or (loss, overflow, scale[, rate[, norm, ...]])."""
        if not isinstance(outputs, (tuple, list)):
            return cls(outputs)
        if len(outputs) not in (3, 4, 5, 7):
            return cls(outputs[0] if outputs else None)
        rate = outputs[3] if len(outputs) > 3 else None
        norm = outputs[4] if len(outputs) > 4 else None
        return cls(outputs[0], rate, norm, outputs[2], outputs[1])

    def correct(self, given: LossMonitorSettings) -> None:
        """Turn a loss that is a sum over parts of a batch into its mean."""
        if self.loss is None:
            return
        if not given.calculate_per_token_loss:
            if given.micro_batch_num > 1 and _pipeline_stages() > 1:
                self.loss /= given.micro_batch_num
            if given.gradient_accumulation_steps > 1:
                self.loss /= given.gradient_accumulation_steps
        if given.micro_batch_interleave_num > 1:
            self.loss /= given.micro_batch_interleave_num


def mean_of(value: Any) -> float | None:
    """Return a number, or the mean of a tensor of any framework; None for what has no number."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    elif hasattr(value, "detach"):
        value = value.detach().float().cpu().numpy()
    try:
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return float(found.mean()) if found.size else None


def imported_mindspore() -> Any:
    """Return MindSpore if it is imported. A folder of that name in the working directory is a package, too."""
    return sys.modules["mindspore"] if "mindspore.train" in sys.modules else None


def learning_rate_of(given: Any, optimizer: Any, step: int) -> float | None:
    """Return the rate of a step: of a schedule, a number, or the optimizer."""
    if callable(given) and (mindspore := imported_mindspore()) is not None:
        return mean_of(given(mindspore.Tensor(step, mindspore.int32)))
    if given is not None:
        return mean_of(given)
    read = getattr(optimizer, "get_lr", None)
    if read is None:
        return None
    found = read()
    return mean_of(found[0] if isinstance(found, (tuple, list)) else found)


def place_here() -> tuple[int, int]:
    """Return rank and number of ranks, from MindSpore's communication or the launcher's environment."""
    mindspore = imported_mindspore()
    if mindspore is not None:
        try:
            return int(mindspore.communication.get_rank()), int(mindspore.communication.get_group_size())
        except (RuntimeError, ValueError, AttributeError):
            pass  # not initialized
    rank = os.environ.get("RANK_ID") or os.environ.get("RANK") or "0"
    size = os.environ.get("RANK_SIZE") or os.environ.get("WORLD_SIZE") or "1"
    return (int(rank), int(size)) if rank.isdecimal() and size.isdecimal() else (0, 1)


def _pipeline_stages() -> int:
    mindspore = imported_mindspore()
    return 1 if mindspore is None else int(mindspore.get_auto_parallel_context("pipeline_stages"))


def named_cell(model: Any) -> Any:
    """Return the cell inside a MindSpore model in which parameters are called by their own names; or the model."""
    if not hasattr(model, "cells_and_names"):
        return model
    kind = sys.modules["mindspore"].nn.Optimizer
    optimizers = [cell for _, cell in model.cells_and_names() if isinstance(cell, kind)]
    trained = optimizers[0].parameters if optimizers else model.trainable_params()
    names = {id(parameter): parameter.name for parameter in trained}
    for _, cell in model.cells_and_names():
        # A training cell and its optimizer have all parameters, too.
        if any(isinstance(inside, kind) for _, inside in cell.cells_and_names()):
            continue
        found = {id(parameter): name for name, parameter in cell.parameters_and_names()}
        if all(found.get(key) == name for key, name in names.items()):
            return cell
    return model


Loads = dict[str, npt.NDArray[np.float64]]


def expert_loads(network: Any) -> Loads:
    """Return what each cell with an `expert_load` has counted so far, in one transfer."""
    cells = dict(named_cell(network).cells_and_names())
    found = {name: cell.expert_load for name, cell in cells.items() if hasattr(cell, "expert_load")}
    found = {name: load for name, load in found.items() if hasattr(load, "asnumpy")}
    if not found:
        return {}
    ops = sys.modules["mindspore"].ops
    together = ops.cat([load.value().reshape(-1).astype("float32") for load in found.values()]).asnumpy()
    ends = np.cumsum([int(np.prod(load.shape)) for load in found.values()])
    parts = np.split(np.asarray(together, np.float64), ends[:-1])
    return dict(zip(found, parts, strict=True))


def shares(now: Loads, before: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, float]:
    """Return `expert_load/<cell>/ep_<n>` of one step: counts may be set to zero by the model after each."""
    values: dict[str, float] = {}
    for name, counts in now.items():
        earlier = before.get(name)
        grown = counts if earlier is None or (counts < earlier).any() else counts - earlier
        total = float(grown.sum())
        if total > 0:
            values.update({f"expert_load/{name}/ep_{at}": float(each / total) for at, each in enumerate(grown)})
    return values
