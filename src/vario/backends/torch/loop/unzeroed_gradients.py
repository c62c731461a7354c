"""Detect gradients that an update gets although the previous update has already used them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from vario.backends.torch.reduce.tensors import aside, local_part


class UnzeroedGradients:
    """Follows one small parameter of each optimizer from one of its updates to the next.

    Zeroing has no event: models, optimizers and loops do it in many ways. So the gradient is read when a backward pass
    begins. Other backward passes may come first, for another model's update or for the inputs, and find gradients that
    are discarded later: only what every backward pass since the update has found was never zeroed.
    """

    def __init__(self, smallest_of: Callable[[Any], torch.Tensor | None]) -> None:
        self._smallest_of = smallest_of
        self._followed: weakref.WeakKeyDictionary[Any, _Followed] = weakref.WeakKeyDictionary()
        self._by_hand: _Followed | None = None

    def update_ended(self, optimizer: Any) -> None:
        """Note that an update has used its gradients; None: the loop's own update."""
        followed = self._of(optimizer) or _Followed(self._smallest_of(optimizer))
        followed.restart()
        if optimizer is None:
            self._by_hand = followed
        else:
            self._followed[optimizer] = followed

    def backward_began(self) -> None:
        """Note the start of a backward pass, before it reaches any parameter."""
        for followed in self._all():
            followed.look()

    def update_began(self, optimizer: Any) -> float | torch.Tensor:
        """Return the largest magnitude in that gradient that has been there since the previous update."""
        followed = self._of(optimizer)
        return 0.0 if followed is None else followed.unzeroed()

    def _of(self, optimizer: Any) -> _Followed | None:
        return self._by_hand if optimizer is None else self._followed.get(optimizer)

    def _all(self) -> Iterable[_Followed]:
        return [*self._followed.values(), *([] if self._by_hand is None else [self._by_hand])]


class _Followed:
    def __init__(self, parameter: torch.Tensor | None) -> None:
        self._parameter = (lambda: None) if parameter is None else weakref.ref(parameter)
        self.restart()

    def restart(self) -> None:
        self._is_clean = False
        self._least: torch.Tensor | None = None
        self._seen: torch.Tensor | None = None

    def look(self) -> None:
        if self._is_clean:
            return
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        here = local_part(gradient) if gradient is not None and gradient.layout is torch.strided else None
        if here is None or not here.numel() or (self._seen is not None and self._seen is not gradient):
            self._is_clean, self._least, self._seen = True, None, None
            return
        with aside(here.device):
            size = here.abs().amax().float()
            self._least = size if self._least is None else torch.minimum(self._least, size)
        self._seen = gradient

    def unzeroed(self) -> float | torch.Tensor:
        parameter = self._parameter()
        # A gradient that the loop has assigned itself is another tensor; backward adds to the existing one.
        is_same = parameter is not None and self._seen is not None and parameter.grad is self._seen
        return self._least if is_same and self._least is not None else 0.0
