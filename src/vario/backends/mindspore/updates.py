"""What updates do to parameters, and what changes them in between, from a sample of each.

The samples are read before and after each update; the numbers are computed when the step is recorded, on the writer
thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.backends.mindspore import optimizers as states
from vario.backends.mindspore.samples import Read, Samples
from vario.backends.mindspore.targets import Targets
from vario.backends.numpy.summaries import summarise
from vario.backends.protocols.observing import Later, Observer
from vario.core.records import SUM_SQUARES, Table, empty_table

Array = npt.NDArray[np.float64]
GradientsOf = Callable[[Any], tuple[Sequence[str], Sequence[Any]]]
_KINDS = 5
_TINY = float(np.finfo(np.float32).tiny)


@dataclass
class _Held:
    """The samples of one optimizer, and what was read of them around its update."""

    names: list[str]
    places: list[int]
    parameters: list[Any]
    samples: Samples
    num_updates: int
    last: Read = None
    """After the last update."""
    before: Read = None
    second_moments: Read = None
    gradients: Read = None
    rates: Later | None = None


class UpdateRows:
    """Follows the updates of all optimizers for the quantities `update` and `unexpected_change`."""

    def __init__(self, targets: Targets, gradients_of: GradientsOf) -> None:
        self._targets = targets
        self._gradients_of = gradients_of
        self.update: Observer | None = None
        self.unexpected: Observer | None = None
        self._held: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Drop everything that was kept of the model."""
        self._held.clear()

    def called(self, optimizer: Any) -> None:
        """Take the call of an optimizer: see what changed since the last update, and read what is there now."""
        self._guarded(self._called, optimizer)

    def began(self, optimizer: Any) -> None:
        """Take the gradients that the optimizer gets."""
        if self._measures:
            self._guarded(self._began, optimizer)

    def ended(self, optimizer: Any) -> None:
        """Take the result of the update."""
        self._guarded(self._ended, optimizer)

    def _guarded(self, call: Callable[[Any], None], optimizer: Any) -> None:
        if optimizer is None:
            self._held.clear()  # the loop changes weights itself: that is expected
            return
        began = perf_counter()
        try:
            call(optimizer)
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.forget()
            for observer in (self.update, self.unexpected):
                if observer is not None:
                    observer.failed(error)
        if (paying := self.update if self._measures else self.unexpected) is not None:
            paying.took(perf_counter() - began)

    @property
    def _measures(self) -> bool:
        return self.update is not None and self.update.watching

    @property
    def _compares(self) -> bool:
        return self.unexpected is not None and self.unexpected.watching

    def _called(self, optimizer: Any) -> None:
        held = self._of(optimizer)
        last, held.last = held.last, None
        held.before = None
        if not self._measures and (last is None or not self._compares):
            return
        now = held.samples.read(held.parameters)
        if last is not None and self._compares and self.unexpected is not None and not _are_equal(now, last):
            self.unexpected.add_later(lambda: _unexpected_rows(held, now, last), len(held.names))
        if self._measures:
            held.before, held.rates = now, states.rates_of_parameters(optimizer, held.places)
            moments = states.state_of(optimizer).get("exp_avg_sq")
            if moments is not None:
                held.second_moments = held.samples.read([moments[place] for place in held.places])

    def _began(self, optimizer: Any) -> None:
        held = self._of(optimizer)
        names, tensors = self._gradients_of(optimizer)
        if held.second_moments is not None and list(names) == held.names:
            held.gradients = held.samples.read(tensors)

    def _ended(self, optimizer: Any) -> None:
        held = self._of(optimizer)
        held.num_updates += 1
        is_measured = self._measures and held.before is not None
        if not is_measured and not self._compares:
            return
        after = held.samples.read(held.parameters)
        if is_measured and self.update is not None:
            moments = states.state_of(optimizer).get("exp_avg_sq")
            left = None if moments is None else held.samples.read([moments[place] for place in held.places])
            one = _Measured(held, after, left, states.second_moment_settings(optimizer))
            self.update.add_later(one.rows, _KINDS * len(held.names))
        held.before = held.second_moments = held.gradients = None
        if self._compares:
            # Those of another optimizer with the same parameters are expected to differ now.
            for other in self._held.values():
                if other is not held:
                    other.last = None
            held.last = after

    def _of(self, optimizer: Any) -> _Held:
        found = self._held.get(optimizer)
        if found is None:
            own = self._targets.parameters_of(optimizer)
            found = self._held[optimizer] = _Held(
                names=[name for _, name, _ in own],
                places=[place for place, _, _ in own],
                parameters=[parameter for _, _, parameter in own],
                samples=Samples([tuple(parameter.shape) for _, _, parameter in own]),
                num_updates=states.num_updates(optimizer),
            )
        return found


class _Measured:
    """One update: it makes its rows when the step is recorded."""

    def __init__(self, held: _Held, after: Read, left: Read, settings: tuple[float, float] | None) -> None:
        self._names, self._samples, self._num_updates = held.names, held.samples, held.num_updates
        self._before, self._after, self._left = held.before, after, left
        self._found, self._gradients = held.second_moments, held.gradients
        self._rates, self._settings = held.rates, settings

    def rows(self) -> tuple[list[str], Table]:
        """Return names (`weight:change`) and Summaries."""
        split = self._samples.split
        before, after = split(self._before), split(self._after)
        found: list[tuple[str, Table]] = []
        rates = np.full(len(self._names), np.nan) if self._rates is None else self._rates()
        for name, old, new, rate in zip(self._names, before, after, rates, strict=True):
            change = summarise(new - old, 0.0)
            found.append((f"{name}:change", change))
            norm = float(np.linalg.norm(old))
            if norm:
                ratio = float(np.sqrt(change[SUM_SQUARES])) / norm
                found.append((f"{name}:ratio", summarise(np.array([ratio]), 0.0)))
                if rate and np.isfinite(rate):
                    found.append((f"{name}:pace", summarise(np.array([ratio / rate]), 0.0)))
        found += self._health()
        if not found:
            return [], empty_table(0)
        return [name for name, _ in found], np.stack([row for _, row in found])

    def _health(self) -> list[tuple[str, Table]]:
        """Compare gradients, and eps, with the second moments of Adam and similar optimizers."""
        if self._settings is None:
            return []
        beta, eps = self._settings
        found: list[tuple[str, Table]] = []
        counted = self._num_updates - 1
        if self._gradients is not None and self._found is not None and counted > 0:
            pairs = zip(self._samples.split(self._gradients), self._samples.split(self._found), strict=True)
            for name, (gradient, moment) in zip(self._names, pairs, strict=True):
                expected = np.maximum(moment / (1.0 - beta**counted), max(eps**2, _TINY))
                found.append((f"{name}:grad_vs_second_moment", summarise(gradient**2 / expected, 0.0)))
        if self._left is not None:
            for name, moment in zip(self._names, self._samples.split(self._left), strict=True):
                mean = float(moment.mean()) / (1.0 - beta**self._num_updates)
                if mean > 0 and np.isfinite(mean):
                    found.append((f"{name}:eps_share", summarise(np.array([eps / np.sqrt(mean)]), 0.0)))
        return found


def _unexpected_rows(held: _Held, now: Read, last: Read) -> tuple[list[str], Table]:
    """Return the rows of what has changed between two updates; in healthy training there are none."""
    names, rows = [], []
    for name, new, old in zip(held.names, held.samples.split(now), held.samples.split(last), strict=True):
        has_changed = (new != old) & ~(np.isnan(new) & np.isnan(old))
        if has_changed.any():
            names.append(name)
            rows.append(summarise(np.where(has_changed, new - old, 0.0), 0.0))
    return names, np.stack(rows) if rows else empty_table(0)


def _are_equal(now: Read, last: Read) -> bool:
    """Whether nothing has changed, if that is known without waiting for a device."""
    return isinstance(now, np.ndarray) and isinstance(last, np.ndarray) and np.array_equal(now, last)
