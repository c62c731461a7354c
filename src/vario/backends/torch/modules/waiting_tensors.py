"""Tensors of modules that wait for the end of their pass, to be looked at together.

Between the operators of a model every line of Python is slow: nothing of it is in the processor's caches. So a hook
only notes the tensor of a target that is known to be steady, and one loop at the end of the pass does the rest. For
gradients no Python code runs at all until the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import Any

import torch

from vario.backends.protocols.observing import Named, Observer
from vario.backends.torch.modules.seen_tensors import SeenTensor
from vario.backends.torch.reduce.steady_tensors import MOST_BYTES, MOST_WAITING, MOST_WAITING_BYTES
from vario.backends.torch.reduce.tensors import version_of
from vario.core import last_guard
from vario.core.clock import Clock

_open_ones: list[WaitingTensors] = []
"""Those in whose pass tensors wait: one at most."""


def waits_as_input(module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether a module was called with one steady tensor alone, which now waits."""
    if not _open_ones or len(args) != 1 or (kwargs and kwargs[0]):
        return False
    return _open_ones[0].add(_open_ones[0].steady_inputs.get(id(module)), args[0])


def waits_as_output(module: torch.nn.Module, output: Any) -> bool:
    """Whether a module returned one steady tensor, which now waits."""
    return bool(_open_ones) and _open_ones[0].add(_open_ones[0].steady_outputs.get(id(module)), output)


class WaitingTensors:
    """The tensors of one model's pass that wait, and which may."""

    def __init__(
        self,
        values: Observer | None,
        gradients: Observer | None,
        clock: Clock,
        expect_gradient: Callable[[str, torch.Tensor, SeenTensor], None],
    ) -> None:
        """`expect_gradient` is called for each target whose tensor requires a gradient."""
        self._values = values
        self._gradients = gradients
        self._clock = clock
        self._expect_gradient = expect_gradient
        self.seen: dict[int, SeenTensor] = {}
        """All tensors of the pass, by identity."""
        self.steady_inputs: dict[int, str] = {}
        self.steady_outputs: dict[int, str] = {}
        """Targets whose tensors keep their values until the end of the pass, by the identity of the module."""
        self._sides: dict[str, tuple[dict[int, str], int]] = {}
        """Where targets of single tensors belong in these two."""
        self._steady_gradients: set[str] = set()
        self._waiting: list[tuple[str, torch.Tensor, int, int, bool]] = []
        """Target, tensor, its version, place in the order of rows, and whether it required a gradient."""
        self._came: dict[SeenTensor, torch.Tensor] = {}
        """Gradients, in the order in which they came."""
        self._num_bytes = self._expected_bytes = 0
        self._thread = -1

    def add_module(self, name: str, module: torch.nn.Module) -> None:
        """Add a module whose tensors may come to wait."""
        self._sides[f"{name}:input"] = self.steady_inputs, id(module)
        self._sides[f"{name}:output"] = self.steady_outputs, id(module)

    def see(self, tensor: torch.Tensor) -> SeenTensor:
        """Return what is known about a tensor of this pass."""
        seen = self.seen.get(id(tensor))
        if seen is None or not seen.is_of(tensor):
            seen = self.seen[id(tensor)] = SeenTensor(tensor, self._clock.micro_step)
        return seen

    def learn(self, target: str, seen: SeenTensor) -> None:
        """Let the tensors of a target wait from now on, if this one keeps its values."""
        if seen.is_steady and (side := self._sides.get(target)) is not None:
            side[0][side[1]] = target

    def learn_gradient(self, target: str, is_steady: bool) -> None:
        """Let the gradients of a target wait from now on, if they are steady."""
        if is_steady:
            self._steady_gradients.add(target)

    def open(self) -> None:
        """Let tensors wait from now on: a pass has begun on this thread."""
        if self._values is not None and self._values.watching and torch._C._get_tracing_state() is None:
            self._thread, self._next_order = get_ident(), self._values.next_order
            _open_ones[:] = [self]

    @property
    def is_open(self) -> bool:
        """Whether tensors wait now."""
        return self in _open_ones

    def close(self) -> None:
        """End the pass: look at all that wait."""
        if self in _open_ones:
            _open_ones.clear()
        self._look()

    def drop(self) -> None:
        """Forget what waits: the pass has failed."""
        self._waiting, self._num_bytes, self._expected_bytes = [], 0, 0
        self._came.clear()

    def add(self, target: str | None, tensor: Any) -> bool:
        """Let a tensor wait, if it will have the same values later. Runs at every module."""
        if target is None or type(tensor) is not torch.Tensor or get_ident() != self._thread:
            return False
        num_bytes, version = tensor.nbytes, version_of(tensor)
        if num_bytes > MOST_BYTES or version < 0:
            return False
        # A checkpoint turns a tensor that was computed without gradients into one that requires them.
        self._waiting.append((target, tensor, version, self._next_order(), tensor.requires_grad))
        self._num_bytes += num_bytes
        if self._num_bytes > MOST_WAITING_BYTES or len(self._waiting) >= MOST_WAITING:
            self._look()
        return True

    def _look(self) -> None:
        waiting, self._waiting, self._num_bytes = self._waiting, [], 0
        values, gradients = self._values, self._gradients
        if not waiting or values is None or not values.watching:
            return
        began = perf_counter()
        wants_gradients = gradients is not None and gradients.watching
        together: dict[SeenTensor, tuple[torch.Tensor, Named]] = {}
        micro_step = self._clock.micro_step
        try:
            for target, tensor, version, order, requires_grad in waiting:
                seen = self.see(tensor)
                if seen.version != version:
                    # Modified in place this time: its values of this step are gone.
                    side = self._sides.pop(target)
                    side[0].pop(side[1], None)
                    continue
                if seen.row is not None:
                    values.add_row(target, seen.row, order)
                elif seen in together:
                    together[seen][1][1].append((target, order))
                else:
                    together[seen] = tensor, (micro_step, [(target, order)])
                if wants_gradients and requires_grad:
                    self._expect_gradient(target, tensor, seen)
        except Exception as error:  # noqa: BLE001 - the failure policy
            values.failed(error)
        found = list(together.values())
        rows = values.observe_together([tensor for tensor, _ in found], [named for _, named in found])
        for seen, row in zip(together, rows, strict=True):
            seen.row = row
        values.took(perf_counter() - began)

    def gradient_hook(
        self, seen: SeenTensor, target: str, tensor: torch.Tensor
    ) -> Callable[[torch.Tensor], None] | None:
        """Return a hook that lets the gradient of a tensor wait; None if it must not."""
        if target not in self._steady_gradients or tensor.nbytes > MOST_BYTES:
            return None
        self._expected_bytes += tensor.nbytes
        if self._expected_bytes > MOST_WAITING_BYTES:
            self._expected_bytes = 0
            return last_guard.never_raises(partial(self._enough_came, seen))
        return partial(self._came.__setitem__, seen)

    def _enough_came(self, seen: SeenTensor, gradient: torch.Tensor) -> None:
        self._came[seen] = gradient
        self.take_gradients()

    def take_gradients(self) -> None:
        """Record the gradients that have come so far."""
        came = list(self._came.items())
        self._came.clear()
        observer = self._gradients
        if not came or observer is None or not observer.watching:
            return
        began = perf_counter()
        named: list[Named] = []
        for seen, _ in came:
            micro_step = self._clock.micro_step if seen.micro_step is None else seen.micro_step
            self._clock.backward_began(micro_step)
            named.append((micro_step, [(target, None) for target in seen.targets]))
        observer.observe_together([gradient for _, gradient in came], named)
        observer.took(perf_counter() - began)
