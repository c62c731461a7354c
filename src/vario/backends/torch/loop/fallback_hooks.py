"""A second way to observe the gradient of a parameter whose hooks torch has lost.

Before 2.11 a parameter loses its hooks when a checkpoint, or anything else with hooks on saved tensors, returns it to
an `autograd.Function` written in Python that saved it: a graph of torch.compile, or a custom kernel. torch clears them
with the Python object of that copy, which shares the parameter's node in the graph. Hooks that run after such a node
stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch

from vario.backends.torch import releases
from vario.backends.torch.loop import hooks

log = logging.getLogger("vario")

Came = Callable[[torch.Tensor], None]


class SecondHooks:
    """Reports gradients that were added to a tensor although its own hook was not called."""

    def __init__(self) -> None:
        self._followed: dict[int, tuple[torch.Tensor, Came]] = {}
        self._seen: set[int] = set()
        self._unseen: set[int] = set()
        self._undo = hooks.Undos()
        self._has_warned = False

    def follow(self, tensor: torch.Tensor, came: Came) -> Came:
        """Return what the tensor's own hook should call; `came` itself if torch loses no hooks."""
        if not releases.LOSES_HOOKS:
            return came
        number = id(tensor)
        self._followed[number] = tensor, came

        def seen(gradient: torch.Tensor) -> None:
            self._seen.add(number)
            came(gradient)

        return seen

    def forward_ended(self) -> None:
        """Hook the nodes of the new graph without keeping them: each has the parameter's current shape."""
        self.forget()
        self._seen.clear()  # of a backward pass that raised
        self._unseen.clear()
        for number, (tensor, _) in self._followed.items():
            if tensor.requires_grad and tensor.is_leaf:
                self._undo.add(hooks.after_node(tensor, partial(self._came, number)))

    def accumulated(self, tensor: torch.Tensor) -> None:
        """Note that something was added to a tensor's gradient; hooks of its node run after this."""
        number = id(tensor)
        if number in self._seen:
            self._seen.discard(number)
        elif number in self._followed:
            self._unseen.add(number)

    def _came(self, number: int, gradient: torch.Tensor) -> None:
        if number in self._unseen:
            self._unseen.discard(number)
            self._followed[number][1](gradient)

    def backward_ended(self) -> None:
        """Warn once if the second hook was not called either, for example in a model that is not called as a whole."""
        if self._unseen and not self._has_warned:
            self._has_warned = True
            log.warning(
                "gradient_local lacks %d parameters: torch %s loses hooks under checkpointing; torch 2.11 does not",
                len(self._unseen),
                torch.__version__,
            )
        self._seen.clear()
        self._unseen.clear()

    def forget(self) -> None:
        """Remove the hooks from the nodes of the latest graph."""
        self._undo()
