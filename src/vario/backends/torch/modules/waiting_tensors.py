"""Tensors of modules that wait for the end of their pass, to be looked at together.

Between the operators of a model every line of Python is slow: nothing of it is in the processor's caches. So a hook
only notes the tensor of a target that is known to be steady, and one loop at the end of the pass does the rest. For
gradients no Python code runs at all until the end of the backward pass. In a regular loop each pass has the same
targets, and the same of them are one tensor: what follows from that is known from the pass before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from threading import get_ident
from time import perf_counter
from typing import Any

import torch

from vario.backends.protocols.observing import Named, Observer
from vario.backends.torch.modules.pass_plans import GradientNames, PassPlans
from vario.backends.torch.modules.seen_tensors import SeenTensor
from vario.backends.torch.reduce.steady_tensors import MOST_WAITING, is_kept_anyway, room
from vario.backends.torch.reduce.tensors import version_of
from vario.core.clock import Clock
from vario.core.process import last_guard

_version = attrgetter("_version")
_Note = tuple[str, torch.Tensor, int, int, bool]
"""Target, tensor, its version, place in the order of rows, and whether it required a gradient."""

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
        gradient_came: Callable[[SeenTensor], Callable[[torch.Tensor], None]],
    ) -> None:
        """`expect_gradient` is called for targets whose tensor requires a gradient, one by one.

        `gradient_came` makes the hook for a tensor whose gradient does not wait.
        """
        self._values = values
        self._gradients = gradients
        self._clock = clock
        self._expect_gradient = expect_gradient
        self._gradient_came = gradient_came
        self.seen: dict[int, SeenTensor] = {}
        """All tensors of the pass, by identity."""
        self.steady_inputs: dict[int, str] = {}
        self.steady_outputs: dict[int, str] = {}
        """Targets whose tensors keep their values until the end of the pass, by the identity of the module."""
        self._steady_others: set[str] = set()
        """Steady targets of modules that take or return several tensors."""
        self._sides: dict[str, tuple[dict[int, str], int]] = {}
        """Where targets of single tensors belong in these two."""
        self._steady_gradients: set[str] = set()
        self._waiting: list[_Note] = []
        self._plans = PassPlans()
        self._names = GradientNames()
        self._came: dict[SeenTensor, torch.Tensor] = {}
        """Gradients, in the order in which they came."""
        self._placed: list[tuple[tuple[str, ...], int]] = []
        """The targets of the first of these, and the place of the first target in the order of rows."""
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
        if not seen.is_steady:
            return
        if (side := self._sides.get(target)) is not None:
            side[0][side[1]] = target
        else:
            self._steady_others.add(target)

    def takes(self, target: str, tensor: torch.Tensor) -> bool:
        """Whether one of several tensors of a module waits now."""
        if self not in _open_ones:
            return False
        side = self._sides.get(target)
        is_steady = target in self._steady_others if side is None else side[1] in side[0]
        return is_steady and self.add(target, tensor)

    def learn_gradient(self, target: str, is_steady: bool) -> None:
        """Let the gradients of a target wait from now on, if they are steady."""
        if is_steady:
            self._steady_gradients.add(target)

    def open(self) -> None:
        """Let tensors wait from now on: a pass has begun on this thread."""
        if self._values is not None and self._values.watching and torch._C._get_tracing_state() is None:
            self._thread, self._order = get_ident(), self._values.places
            self._expected_bytes = 0
            room.measure()
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
        self._placed.clear()

    def add(self, target: str | None, tensor: Any) -> bool:
        """Let a tensor wait, if it will have the same values later. Runs at every module."""
        if target is None or type(tensor) is not torch.Tensor or get_ident() != self._thread:
            return False
        num_bytes, version, order = tensor.nbytes, version_of(tensor), self._order
        if num_bytes > room.of_one or version < 0:
            return False
        # A checkpoint turns a tensor that was computed without gradients into one that requires them.
        self._waiting.append((target, tensor, version, order.next, tensor.requires_grad))
        order.next += 1
        self._num_bytes += num_bytes
        if self._num_bytes > room.of_values or len(self._waiting) >= MOST_WAITING:
            self._make_room()
        return True

    def _make_room(self) -> None:
        """Look at what waits if that alone keeps too much memory."""
        self._num_bytes = 0
        only_here = {id(note[1]): note[1].nbytes for note in self._waiting if not is_kept_anyway(note[1])}
        if sum(only_here.values()) > room.of_values or len(self._waiting) >= MOST_WAITING:
            self._look()

    def _look(self) -> None:
        notes, self._waiting, self._num_bytes = self._waiting, [], 0
        values = self._values
        if not notes or values is None or not values.watching:
            return
        began = perf_counter()
        try:
            if not self.seen.keys().isdisjoint(map(id, (note[1] for note in notes))):
                notes = self._not_seen_before(notes, values)
            if notes:
                self._look_together(notes, values)
        except Exception as error:  # noqa: BLE001 - the failure policy
            values.failed(error)
        values.took(perf_counter() - began)

    @property
    def _wants_gradients(self) -> bool:
        return self._gradients is not None and self._gradients.watching

    def _not_seen_before(self, notes: list[_Note], values: Observer) -> list[_Note]:
        """Give the targets of tensors that have a row already that row; return the others."""
        new: list[_Note] = []
        for note in notes:
            target, tensor, version, place, requires_grad = note
            seen = self.seen.get(id(tensor))
            if seen is None or not seen.is_of(tensor) or seen.version != version or seen.row is None:
                new.append(note)
                continue
            values.add_row(target, seen.row, place)
            if requires_grad and self._wants_gradients:
                self._expect_gradient(target, tensor, seen)
        return new

    def _look_together(self, notes: list[_Note], values: Observer) -> None:
        targets, tensors, versions, places, need_gradients = zip(*notes, strict=True)
        if tuple(map(_version, tensors)) != versions:
            notes = [note for note in notes if self._is_unmodified(*note)]
            if not notes:
                return
            targets, tensors, versions, places, need_gradients = zip(*notes, strict=True)
        plan = self._plans.plan(targets, tensors)
        micro_step = self._clock.micro_step
        found = [tensors[at] for at in plan.first_notes]
        rows = values.observe_together(found, Named(micro_step, targets, plan.tensors, places))
        is_alike = self._wants_gradients and plan.are_alike(need_gradients)
        others = self._wants_gradients and not is_alike
        for at, tensor, row, names in zip(plan.first_notes, found, rows, plan.names, strict=True):
            seen = self.seen[id(tensor)] = SeenTensor(tensor, micro_step, versions[at])
            seen.row = row
            if not (is_alike and need_gradients[at]):
                continue
            if tensor.is_leaf:
                others = True
                continue
            seen.targets, seen.gradient_hooked = names, True
            tensor.register_hook(self.gradient_hook(seen, names[0], tensor) or self._gradient_came(seen))
        if others:
            for target, tensor, _, _, requires_grad in notes:
                if requires_grad and (seen := self.seen[id(tensor)]) and target not in seen.targets:
                    self._expect_gradient(target, tensor, seen)

    def _is_unmodified(self, target: str, tensor: torch.Tensor, version: int, place: int, _: bool) -> bool:
        """Whether a tensor still has the values it was noted with; if not, those of this step are gone."""
        if tensor._version == version:
            return True
        self._steady_others.discard(target)
        if (side := self._sides.pop(target, None)) is not None:
            side[0].pop(side[1], None)
        return False

    def gradient_hook(
        self, seen: SeenTensor, target: str, tensor: torch.Tensor
    ) -> Callable[[torch.Tensor], None] | None:
        """Return a hook that lets the gradient of a tensor wait; None if it must not."""
        if target not in self._steady_gradients or tensor.nbytes > room.of_one:
            return None
        self._expected_bytes += tensor.nbytes
        if self._expected_bytes > room.of_gradients:
            self._expected_bytes = 0
            return last_guard.never_raises(partial(self._enough_came, seen))
        return partial(self._came.__setitem__, seen)

    def _enough_came(self, seen: SeenTensor, gradient: torch.Tensor) -> None:
        self._came[seen] = gradient
        self.take_gradients()

    def place_gradients(self) -> None:
        """Take places for the gradients that have come so far: rows of others come after them."""
        if self._gradients is None or len(self._placed) == len(self._came):
            return
        order = self._gradients.places
        for seen in islice(self._came, len(self._placed), None):
            self._placed.append((seen.targets, order.next))
            order.next += len(seen.targets)

    def take_gradients(self) -> None:
        """Record the gradients that have come so far."""
        if not self._came:
            return
        self.place_gradients()
        came = list(zip(self._came.items(), self._placed, strict=True))
        self._came.clear()
        self._placed = []
        observer = self._gradients
        if observer is None or not observer.watching:
            return
        began = perf_counter()
        for micro_step, group in groupby(came, lambda one: one[0][0].micro_step):
            own = list(group)
            micro_step = self._clock.micro_step if micro_step is None else micro_step
            self._clock.backward_began(micro_step)
            targets, tensors = self._names.of(tuple([names for _, (names, _) in own]))
            places = [first + at for _, (names, first) in own for at in range(len(names))]
            observer.observe_together([one for (_, one), _ in own], Named(micro_step, targets, tensors, places))
        observer.took(perf_counter() - began)
