"""Learning rates, wherever an optimizer keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.protocols.observing import Later
from vario.backends.torch.reduce.async_copy import fetch_later


@torch.no_grad()
def learning_rates(groups: Sequence[Mapping[str, Any]]) -> Later:
    """Return the current rate of each group, without waiting for one on a device; NaN if there is none."""
    rates: list[Any] = [group.get("lr") for group in groups]
    if all(type(rate) is float for rate in rates):
        return lambda: np.array(rates)
    on_device = [at for at, rate in enumerate(rates) if isinstance(rate, torch.Tensor) and rate.device.type != "cpu"]
    numbers = np.array([np.nan if at in on_device or rate is None else float(rate) for at, rate in enumerate(rates)])
    if not on_device:
        return lambda: numbers
    # One at a time: they may be on several devices. Stacking makes a copy that a schedule does not write to.
    fetches = {at: fetch_later(torch.stack([rates[at].reshape(())])) for at in on_device}

    def fetch() -> npt.NDArray[Any]:
        for at, wait in fetches.items():
            numbers[at] = wait()[0]
        return numbers

    return fetch


def initial_rate(groups: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the rate that a scheduler of the first group starts from; None if there is none, or it is a tensor."""
    rate = groups[0].get("initial_lr") if groups else None
    return float(rate) if isinstance(rate, (int, float)) else None
