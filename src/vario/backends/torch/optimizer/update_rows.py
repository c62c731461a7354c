"""What updates do to parameters, and what changes them in between, from a sample of each.

The samples of all parameters are read before and after each update. Their difference is the change; the difference
between before and the previous after is what no optimizer did. The numbers are computed when the step is recorded, on
the writer thread: nothing here waits for a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from vario.backends.protocols.observing import Observer
from vario.backends.torch.optimizer.state_samples import StateSamples
from vario.backends.torch.optimizer.update_samples import HeldSamples
from vario.backends.torch.optimizer.weight_glance import MOST_STATES, STILL, WeightGlance
from vario.backends.torch.reduce import memory_reads
from vario.backends.torch.reduce.tensors import unseen
from vario.backends.torch.targets import Targets
from vario.core.quantities import WEIGHTS_STILL

_MAX_PLANS = 64
"""The most sets of parameters sampled separately; more optimizers than that would cost more than they show."""

Scale = Callable[[Any], torch.Tensor | None]


class UpdateRows:
    """Follows the updates of all optimizers for the quantities `update` and `unexpected_change`."""

    def __init__(self, targets: Targets, scale: Scale, is_regular: Callable[[], bool]) -> None:
        """`is_regular()`: whether the loop does the same in every step."""
        self._targets = targets
        self._is_regular = is_regular
        self._has_compared = False
        self._scale = scale
        self.update: Observer | None = None
        self.unexpected: Observer | None = None
        self._held: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[tuple[int, ...], HeldSamples]]
        self._held = weakref.WeakKeyDictionary()
        self._has_last = False
        self._glances: weakref.WeakKeyDictionary[torch.optim.Optimizer, WeightGlance | None]
        self._glances = weakref.WeakKeyDictionary()
        self._glanced: WeightGlance | None = None
        """The one whose elements were noted after the last update."""

    def forget(self) -> None:
        """Drop everything that was kept of the model."""
        self._held.clear()
        self._has_last = False
        self._glances.clear()
        self._glanced = None

    # Events

    def called(self, optimizer: Any) -> None:
        """Take the call of an optimizer: check what changed since the last update, and read what is there now."""
        self._has_compared = self._has_last
        if self._has_last or self._is_needed(optimizer):
            self._guarded(self._called, optimizer)
        if self.unexpected is not None and (self._glanced is not None or self._is_regular()):
            self._safely(self._glance, optimizer, self.unexpected)

    def returned(self, optimizer: Any) -> None:
        """Take the return of the optimizer."""
        if self._glanced is not None and self.unexpected is not None:
            self._safely(self._note_glance, optimizer, self.unexpected)

    def _glance(self, optimizer: Any) -> None:
        """Check a few elements, where samples are not compared at every step."""
        glance = None if optimizer is None else self._glance_of(optimizer)
        self._glanced = glance
        for other in list(self._glances.values()) if len(self._glances) > 1 or glance is None else ():
            # Another optimizer of the same weights, or the loop itself, updates them.
            if other is not None and other is not glance and (glance is None or not other.ids.isdisjoint(glance.ids)):
                other.forget()
        if glance is None:
            return
        # Samples that are compared in this step show the same change, and more of it.
        found = glance.update_called(optimizer)
        if not self._has_compared and self.unexpected is not None:
            for rows in found:
                self.unexpected.add_later(*rows)
        if not self._is_regular():
            for each in list(self._glances.values()):
                if each is not None:
                    each.forget()
            self._glanced = None

    def _note_glance(self, optimizer: Any) -> None:
        glance = self._glanced
        if glance is not None and glance is self._glances.get(optimizer):
            glance.update_returned(optimizer)
            if glance.num_still == STILL and self.unexpected is not None:
                self.unexpected.log(WEIGHTS_STILL, float(STILL))

    def _glance_of(self, optimizer: torch.optim.Optimizer) -> WeightGlance | None:
        if optimizer not in self._glances:
            pieces = [piece for piece, _ in self._targets.sampled_pieces(optimizer) if piece.part is None]
            weights = [piece.held for piece in pieces]
            is_possible = bool(weights) and all(map(torch.Tensor.is_contiguous, weights))
            is_possible = is_possible and memory_reads.are_plain(weights) and len({one.dtype for one in weights}) == 1
            names = [piece.name for piece in pieces]
            state = StateSamples(pieces, MOST_STATES)
            self._glances[optimizer] = WeightGlance(names, weights, state) if is_possible else None
        return self._glances[optimizer]

    def began(self, optimizer: Any) -> None:
        """Take the gradients the optimizer gets."""
        if self._measures and self._is_needed(optimizer):
            self._guarded(self._began, optimizer)

    def ended(self, optimizer: Any) -> None:
        """Take the result of the update."""
        if self._is_needed(optimizer):
            self._guarded(self._ended, optimizer)

    def _guarded(self, call: Callable[[Any], None], optimizer: Any) -> None:
        with torch.no_grad(), unseen():
            # What both need counts as `update` in steps that record it.
            self._safely(call, optimizer, self.update if self._measures else self.unexpected)

    def _safely(self, call: Callable[[Any], None], optimizer: Any, paying: Observer | None) -> None:
        began = perf_counter()
        try:
            call(optimizer)
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.forget()
            for observer in (self.update, self.unexpected):
                if observer is not None:
                    observer.failed(error)
        if paying is not None:
            paying.took(perf_counter() - began)

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
        if (
            held.last is not None
            and self.unexpected is not None
            and (found := held.unexpected_changes(now, swapped)) is not None
        ):
            self.unexpected.add_later(*found)
        if (
            held.last is not None
            and self.unexpected is not None
            and (state := held.state.changes(optimizer)) is not None
        ):
            self.unexpected.add_later(*state)
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
            self.update.add_later(*held.measured(after, optimizer, self.update.counts_bins))
        held.let_go()
        if self._is_compared:
            held.last = after
            held.state.note(optimizer)
            self._has_last = True

    def _is_needed(self, optimizer: Any) -> bool:
        # Samples that another optimizer has changed since are no longer needed: then even a step that is not recorded
        # counts.
        return optimizer is not None and not _is_capturing() and (self._measures or self._is_compared or self._has_last)

    @property
    def _measures(self) -> bool:
        return self.update is not None and self.update.watching

    @property
    def _is_compared(self) -> bool:
        return self.unexpected is not None and self.unexpected.watching

    def _forget_last(self, updated: HeldSamples | None = None) -> None:
        """Forget samples changed by the loop's own update or by an optimizer that shares them: both are expected."""
        every = [held for plans in list(self._held.values()) for held in plans.values()]
        for held in every:
            if updated is None or (held is not updated and not held.ids.isdisjoint(updated.ids)):
                held.last = None
        self._has_last = any(held.last is not None for held in every)

    def _of(self, optimizer: torch.optim.Optimizer) -> HeldSamples:
        """Return the samples of an optimizer's current parameters: groups come and go, and ZeRO 3 has few at a time."""
        found = self._held.get(optimizer, {}).get(_key(optimizer))
        return self._plan(optimizer) if found is None else found

    def _plan(self, optimizer: torch.optim.Optimizer) -> HeldSamples:
        made = HeldSamples(self._targets.sampled_pieces(optimizer))
        plans = self._held.setdefault(optimizer, {})
        for key in [key for key, known in plans.items() if not known.ids.isdisjoint(made.ids)]:
            # `load_state_dict` makes new groups of the same parameters.
            made.go_on_from(plans.pop(key))
        plans[_key(optimizer)] = made
        if sum(map(len, self._held.values())) > _MAX_PLANS:
            raise RuntimeError(f"more than {_MAX_PLANS} optimizers or parameter groups take turns: too many to follow")
        return made


def _key(optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
    return tuple([number for group in optimizer.param_groups for number in (id(group), *map(id, group["params"]))])


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured: its replays would read memory that is long gone."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
