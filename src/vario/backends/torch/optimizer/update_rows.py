"""What updates do to parameters, and what changes them in between, from a sample of each.

Around each update the samples of all parameters are read twice, before and after. Their difference is the change; the
difference between before and the last after is what no optimizer did. What that means in numbers is worked out when
the step is recorded, on the writer's thread: here nothing waits for a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from vario.backends.base import LateObserver
from vario.backends.torch.optimizer.update_samples import HeldSamples
from vario.backends.torch.reduce.tensors import unseen
from vario.backends.torch.targets import Targets

_MAX_PLANS = 64
"""Sets of parameters that are sampled apart; more optimizers than that would cost more than they tell."""

Scale = Callable[[Any], torch.Tensor | None]


class UpdateRows:
    """Follows the updates of all optimizers for the quantities `update` and `stray`."""

    def __init__(self, targets: Targets, scale: Scale) -> None:
        self._targets = targets
        self._scale = scale
        self.update: LateObserver | None = None
        self.stray: LateObserver | None = None
        self._held: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[tuple[int, ...], HeldSamples]]
        self._held = weakref.WeakKeyDictionary()
        self._has_last = False

    def forget(self) -> None:
        """Let go of everything that was kept of the model."""
        self._held.clear()
        self._has_last = False

    # Events

    def called(self, optimizer: Any) -> None:
        """An optimizer is called: see what has changed since the last update, and what it finds."""
        if self._has_last or self._is_needed(optimizer):
            self._guarded(self._called, optimizer)

    def began(self, optimizer: Any) -> None:
        """It gets its gradients."""
        if self._measures and self._is_needed(optimizer):
            self._guarded(self._began, optimizer)

    def ended(self, optimizer: Any) -> None:
        """It has updated the weights."""
        if self._is_needed(optimizer):
            self._guarded(self._ended, optimizer)

    def _guarded(self, call: Callable[[Any], None], optimizer: Any) -> None:
        try:
            with torch.no_grad(), unseen():
                call(optimizer)
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.forget()
            for observer in (self.update, self.stray):
                if observer is not None:
                    observer.failed(error)

    def _called(self, optimizer: Any) -> None:
        if optimizer is None or _is_capturing():
            self._forget_last()
        if not self._is_needed(optimizer):
            return
        held = self._of(optimizer)
        swapped = held.look()
        if swapped is None:
            held, swapped = self._plan(optimizer), []
        now = held.read()
        if held.last is not None and self.stray is not None and (found := held.stray(now, swapped)) is not None:
            self.stray.observe_later(*found)
        held.last = None
        held.let_go()
        if self._measures:
            held.begin(now, optimizer)

    def _began(self, optimizer: Any) -> None:
        if (held := self._of(optimizer)).is_measured:
            held.take_gradients(self._targets.applied_gradient, self._scale(optimizer))

    def _ended(self, optimizer: Any) -> None:
        held = self._of(optimizer)
        self._forget_last(held)
        if held.look() is None:
            self._held.pop(optimizer)
            return
        after = held.read()
        if self.update is not None and held.is_measured:
            self.update.observe_later(*held.measured(after, optimizer))
        held.let_go()
        if self._watches_stray:
            held.last = after
            self._has_last = True

    def _is_needed(self, optimizer: Any) -> bool:
        # One that another optimizer has changed since is no longer needed: then even a step that is not watched counts.
        return (
            optimizer is not None and not _is_capturing() and (self._measures or self._watches_stray or self._has_last)
        )

    @property
    def _measures(self) -> bool:
        return self.update is not None and self.update.watching

    @property
    def _watches_stray(self) -> bool:
        return self.stray is not None and self.stray.watching

    def _forget_last(self, updated: HeldSamples | None = None) -> None:
        """An update by hand, or by another optimizer that shares parameters, is no stray change."""
        every = [held for plans in list(self._held.values()) for held in plans.values()]
        for held in every:
            if updated is None or (held is not updated and not held.ids.isdisjoint(updated.ids)):
                held.last = None
        self._has_last = any(held.last is not None for held in every)

    def _of(self, optimizer: torch.optim.Optimizer) -> HeldSamples:
        """What an optimizer holds at this moment: groups come and go, and ZeRO 3 cuts them down to a few at a time."""
        found = self._held.get(optimizer, {}).get(_key(optimizer))
        return self._plan(optimizer) if found is None else found

    def _plan(self, optimizer: torch.optim.Optimizer) -> HeldSamples:
        made = HeldSamples(self._targets.sampled_pieces(optimizer))
        plans = self._held.setdefault(optimizer, {})
        for key in [key for key, known in plans.items() if not known.ids.isdisjoint(made.ids)]:
            del plans[key]
        plans[_key(optimizer)] = made
        if sum(map(len, self._held.values())) > _MAX_PLANS:
            raise RuntimeError(f"more than {_MAX_PLANS} optimizers or parts of them take turns: too many to follow")
        return made


def _key(optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
    return tuple([number for group in optimizer.param_groups for number in (id(group), *map(id, group["params"]))])


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured: its replays would read what is long gone."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
