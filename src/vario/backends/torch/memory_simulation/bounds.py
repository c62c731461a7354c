"""Operators whose output size depends on values: simulated with the largest possible size, and listed.

Sizes without a bound from shapes (repeats, counts of numbers) are left to torch, which refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)


def nonzero(tensor: torch.Tensor) -> torch.Tensor:
    """Return a row for every element."""
    return torch.empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return every element of both, broadcast."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    places = torch.empty(shape, dtype=torch.int64)  # CUDA computes the indices first
    chosen = tensor.new_empty(shape.numel())
    del places
    return chosen


def index(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], *, of: Any = aten.index.Tensor) -> torch.Tensor:
    """Return every row that a mask could choose."""
    return of(tensor, places(indices))  # type: ignore[no-any-return]


def index_put(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], *rest: Any, of: Any) -> torch.Tensor:
    """Write every row that a mask could choose."""
    return of(tensor, places(indices), *rest)  # type: ignore[no-any-return]


def places(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return masks as the indices they give if they choose everything."""
    found: list[torch.Tensor | None] = []
    for one in indices:
        if one is not None and one.dtype in MASKS:
            found += nonzero(one).unbind(1)
        else:
            found.append(one)
    return found


def unique(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return every element once, its origin and its count; sorting takes three copies."""
    sorting = [tensor.new_empty(tensor.numel()) for _ in range(2)]
    made = tensor.new_empty(tensor.numel()), _like_words(tensor), torch.empty(tensor.numel(), dtype=torch.int64)
    del sorting
    return made


def unique_dim(tensor: torch.Tensor, dim: int, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return every row once."""
    first, second = (torch.empty(tensor.size(dim), dtype=torch.int64) for _ in range(2))
    return torch.empty_like(tensor), first, second


def ctc_loss(log_chances: torch.Tensor, targets: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a loss per sample, and a table of all its alignments: no target is longer than the sum of all."""
    num_steps, num_samples = log_chances.shape[:2]
    longest = targets.size(-1)
    return log_chances.new_empty(num_samples), log_chances.new_empty(num_samples, num_steps, 2 * longest + 1)


def ctc_loss_backward(gradient: torch.Tensor, log_chances: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return the gradient; a second table is needed meanwhile."""
    table = torch.empty_like(rest[4])
    made = torch.empty_like(log_chances)
    del table
    return made


def pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences that are all as long as the longest."""
    num_steps = padded.size(1 if batch_first else 0)
    shape = (padded.size(0) * padded.size(1), *padded.shape[2:])
    steps = padded.new_empty(shape)
    rows = padded.new_empty(shape)
    del steps
    return rows, torch.empty(num_steps, dtype=torch.int64)


def _like_words(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=torch.int64)


def _has_masks(args: tuple[Any, ...]) -> bool:
    return any(one is not None and one.dtype in MASKS for one in args[1])


def _always(args: tuple[Any, ...]) -> bool:
    return True


def _writing(operator: Any) -> Callable[..., torch.Tensor]:
    return lambda tensor, indices, *rest: index_put(tensor, indices, *rest, of=operator)


BOUNDED: dict[Any, tuple[Callable[..., Any], Callable[[tuple[Any, ...]], bool]]] = {
    aten.nonzero.default: (nonzero, _always),
    aten.masked_select.default: (masked_select, _always),
    aten.index.Tensor: (index, _has_masks),
    aten.index_put.default: (_writing(aten.index_put.default), _has_masks),
    aten.index_put_.default: (_writing(aten.index_put_.default), _has_masks),
    aten._index_put_impl_.default: (_writing(aten._index_put_impl_.default), _has_masks),
    aten._unique2.default: (unique, _always),
    aten._unique.default: (lambda tensor, *rest, **named: unique(tensor)[:2], _always),
    aten.unique_consecutive.default: (unique, _always),
    aten.unique_dim.default: (unique_dim, _always),
    aten.unique_dim_consecutive.default: (unique_dim, _always),
    aten._pack_padded_sequence.default: (pack, _always),
    aten._ctc_loss.Tensor: (ctc_loss, _always),
    aten._ctc_loss_backward.Tensor: (ctc_loss_backward, _always),
}
"""The replacement, and whether these arguments need it."""
