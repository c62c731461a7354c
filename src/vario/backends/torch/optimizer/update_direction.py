"""What an update is about to do, from the gradients and the optimizer's state: direction and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from vario.backends.torch.engines import optimizers
from vario.backends.torch.engines.base import Piece
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.statistics import Values


@torch.no_grad()
def sign_agreement(optimizer: torch.optim.Optimizer, pieces: Iterable[Piece]) -> tuple[list[str], list[torch.Tensor]]:
    """Return per parameter the share of elements whose gradient has the sign of the momentum; a zero counts half.

    Before the first update, which creates the momentum, they agree by definition.
    """
    names: list[str] = []
    shares: list[torch.Tensor] = []
    for piece in pieces:
        if ("betas" not in piece.group and not piece.group.get("momentum")) or piece.held.grad is None:
            continue
        gradient = piece.cut(piece.held.grad)
        if gradient.is_complex():
            continue  # a complex number has no sign
        state = optimizers.state_of(optimizer, piece)
        momentum = state.get("exp_avg", state.get("momentum_buffer"))
        if momentum is None:
            share = torch.ones((), device=gradient.device)
        else:
            gradient, momentum = _here(gradient), _here(momentum)
            same = (gradient.sign() * momentum.sign()).sum(dtype=torch.float32)
            share = (same / max(gradient.numel(), 1) + 1) / 2
        names.append(piece.name)
        shares.append(share)
    return names, shares


@torch.no_grad()
def update_histograms(
    optimizer: torch.optim.Optimizer, pieces: Iterable[Piece], bins: int, low: float, high: float
) -> tuple[list[str], Callable[[], Values]]:
    """Return histograms of Adam's update and ratio from the state before this update, without the learning rate.

    The result waits for the device: one row per parameter's update, then one per ratio.
    """
    names: list[str] = []
    updates: list[torch.Tensor] = []
    ratios: list[torch.Tensor] = []
    for name, update, ratio in _updates_and_ratios(optimizer, pieces):
        names.append(name)
        for histograms, values in ((updates, update), (ratios, ratio)):
            # histc ignores values outside the range, but not NaN (0/0 where a gradient was always 0).
            inside = torch.nan_to_num(values.float(), nan=high + 1.0)
            histograms.append(torch.histc(inside, bins=bins, min=low, max=high))
    return names, _fetch_later([*updates, *ratios], bins)


def _updates_and_ratios(
    optimizer: torch.optim.Optimizer, pieces: Iterable[Piece]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for piece in pieces:
        state = optimizers.state_of(optimizer, piece)
        if not {"exp_avg", "exp_avg_sq", "step"} <= state.keys():
            continue
        beta1, beta2 = piece.group["betas"]
        mean = _here(state["exp_avg"]) / (1 - beta1 ** state["step"])
        root = (_here(state["exp_avg_sq"]) / (1 - beta2 ** state["step"])).sqrt()
        yield piece.name, mean / (root + piece.group["eps"]), mean / root


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor: computing with the whole would be a collective."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _fetch_later(rows: list[torch.Tensor], width: int) -> Callable[[], Values]:
    if not rows:
        return lambda: np.empty((0, width))
    fetch = fetch_later(torch.stack([row.to(rows[0].device) for row in rows]))
    return lambda: fetch().astype(np.float64)
