"""The samples of all parameters of one optimizer, around its update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.protocols.observing import LateBins, Later, LateRows
from vario.backends.torch.engines.base import Piece
from vario.backends.torch.optimizer.element_samples import (
    InMemory,
    Matrix,
    Runs,
    Sample,
    dense_here,
    magnitudes_if_complex,
    sample_size,
    wide_dtype,
)
from vario.backends.torch.optimizer.health import MomentReader, SecondMoments
from vario.backends.torch.optimizer.learning_rates import learning_rates
from vario.backends.torch.optimizer.state_samples import StateSamples
from vario.backends.torch.optimizer.update_tables import (
    Measured,
    Suspected,
    unexpected_rows,
    update_bins,
    update_rows,
)
from vario.backends.torch.reduce.async_copy import fetch_later

Mask = npt.NDArray[np.bool_]
GradientOf = Callable[[Piece], torch.Tensor | None]


class HeldMatrix:
    """The samples on one device: where they are, and what was read of them in the update in progress."""

    def __init__(self, samples: Sequence[Sample], is_recorded: Sequence[bool], dtype: torch.dtype) -> None:
        self.matrix = Matrix(samples, samples[0].piece.held.device, dtype)
        self.is_recorded = np.array(is_recorded)
        self.moments = MomentReader(self.matrix)
        self._views = [_read(sample) if sample.is_seen_in_memory else None for sample in samples]
        self._runs: Runs | InMemory | None = None
        self._is_plain = all(not hasattr(sample.piece.held, "to_local") for sample in samples)
        self._held = [sample.piece.held for sample in samples]
        self._places = self._look()
        self._none = np.zeros(len(samples), bool)
        self.begin(None, None)

    def begin(self, before: torch.Tensor | None, found: SecondMoments | None) -> None:
        """Keep the state before an update."""
        self.before = before
        self.found = found
        self.rates: Later | None = None
        self.grad_vs_second_moment: torch.Tensor | None = None
        self.is_updated = self._none

    def _look(self) -> tuple[list[int], list[int]]:
        """Return where each piece's memory is, and its size."""
        held = self._held if self._is_plain else [_local(tensor) for tensor in self._held]
        return list(map(torch.Tensor.data_ptr, held)), list(map(torch.Tensor.numel, held))

    def swapped(self) -> Mask | None:
        """Follow pieces whose memory was replaced; return which, or None if one has another size now."""
        places = self._look()
        if places == self._places:
            return self._none
        if places[1] != self._places[1] or not all(places[0]):
            return None
        swapped = [now != before for now, before in zip(places[0], self._places[0], strict=True)]
        for at, sample in enumerate(self.matrix.samples):
            if swapped[at] and sample.is_seen_in_memory:
                self._views[at] = _read(sample)
        self._places, self._runs = places, None
        return np.array(swapped)

    def read(self) -> torch.Tensor:
        """Return the current samples."""
        if self._runs is not None:
            return self.matrix.read(self._runs)
        samples = self.matrix.samples
        parts = [_read(sample) if view is None else view for sample, view in zip(samples, self._views, strict=True)]
        if any(view is None for view in self._views):
            return self.matrix.read(self.matrix.lay_out(parts))
        self._runs = self.matrix.lie_in(parts) or self.matrix.lay_out(parts)
        return self.matrix.read(self._runs)

    def take_gradients(self, gradient_of: GradientOf, scale: torch.Tensor | None) -> None:
        """Compare the gradients the optimizer gets, divided by `scale`, with its second moments."""
        samples = self.matrix.samples
        self.is_updated = np.array([sample.piece.held.grad is not None for sample in samples])
        if self.found is None:
            return
        parts: list[torch.Tensor | None] = []
        for sample, is_expected in zip(samples, (self.found.exist & self.is_updated).tolist(), strict=True):
            gradient = sample.piece.held.grad if is_expected else None
            if type(gradient) is not torch.Tensor or sample.piece.part is not None:
                # A rank's part of a gradient, or a part of a flat one.
                gradient = gradient_of(sample.piece) if gradient is not None else None
            local = None if gradient is None else dense_here(gradient)
            is_alike = local is not None and local.shape == sample.shape and local.device == self.matrix.device
            parts.append(sample.read(local) if local is not None and is_alike else None)
        self.found.exist = np.array([part is not None for part in parts])
        if self.found.exist.any():
            gradients = self.matrix.read(self.matrix.lay_out(parts))
            if scale is not None:
                gradients = gradients / scale.to(self.matrix.device, non_blocking=True)
            self.grad_vs_second_moment = self.matrix.summaries(self.found.grad_vs_second_moment(gradients))

    def changes(self, after: torch.Tensor) -> Later:
        """Return what the update has changed, element by element."""
        assert self.before is not None
        return fetch_later(after - self.before)

    def measured(self, after: torch.Tensor, optimizer: torch.optim.Optimizer) -> Measured:
        """Return what the update has done."""
        assert self.before is not None
        assert self.rates is not None
        wide = magnitudes_if_complex(self.before).to(wide_dtype(self.matrix.device))
        before = torch.linalg.vector_norm(wide, dim=1)
        columns = [self.matrix.summaries(after - self.before), before[None]]
        if self.grad_vs_second_moment is not None and self.found is not None:
            columns += [self.grad_vs_second_moment, *self.found.counted_on_device()]
        left = self.moments.read(optimizer)
        if left is not None:
            columns += [left.sums()[None], *left.counted_on_device()]
        return Measured(
            matrix=self.matrix,
            columns=fetch_later(torch.cat(columns)),
            rates=self.rates,
            kept=self.is_recorded & self.is_updated,
            found=None if self.grad_vs_second_moment is None else self.found,
            left=left,
        )


class HeldSamples:
    """Reads the same elements of all parameters of an optimizer, again and again."""

    def __init__(self, pieces: Sequence[tuple[Piece, bool]]) -> None:
        """Each piece with whether this rank records its updates; unexpected changes are searched in all."""
        self.ids = frozenset(id(piece.held) for piece, _ in pieces)
        found: dict[tuple[torch.device, torch.dtype], list[tuple[Sample, bool]]] = {}
        for piece, is_recorded in pieces:
            sample = Sample.of(piece, sample_size(piece.held.device, len(pieces)))
            if sample is not None:
                dtype = _matrix_dtype(piece.held.dtype)
                found.setdefault((piece.held.device, dtype), []).append((sample, is_recorded))
        self._parts: list[HeldMatrix] = []
        for (_, dtype), members in found.items():
            members.sort(key=lambda member: str(member[0].piece.held.dtype))
            self._parts.append(HeldMatrix([sample for sample, _ in members], [is_own for _, is_own in members], dtype))
        self.state = StateSamples([piece for piece, is_recorded in pieces if is_recorded])
        self.last: list[torch.Tensor] | None = None
        """Samples after the last update, if nothing else has updated them since."""
        self.is_measured = False
        """Whether the update in progress is measured."""

    def go_on_from(self, known: HeldSamples) -> None:
        """Take over what was read after the last update, if it is of the same parameters in the same places."""
        places, before = (
            [(id(sample.piece.held), sample.shape) for part in held._parts for sample in part.matrix.samples]
            for held in (self, known)
        )
        if places == before and known.look() is not None:
            self.last = known.last
            self.state.go_on_from(known.state)

    def look(self) -> list[Mask] | None:
        """Follow parameters whose memory was replaced; return which, or None if one has another size now."""
        swapped = [part.swapped() for part in self._parts]
        return None if any(mask is None for mask in swapped) else [mask for mask in swapped if mask is not None]

    def read(self) -> list[torch.Tensor]:
        """Return the current samples."""
        return [part.read() for part in self._parts]

    def unexpected_changes(self, now: list[torch.Tensor], swapped: list[Mask]) -> tuple[LateRows, int] | None:
        """Return what has changed since the last update, and the most rows that may be."""
        found = [
            Suspected(part.matrix, ~is_swapped, new, old, fetch_later((new != old).any(dim=1)))
            for part, new, old, is_swapped in zip(self._parts, now, self.last or (), swapped, strict=True)
            if not (new.device.type == "cpu" and torch.equal(new, old))
        ]
        return (unexpected_rows(found), sum(len(one.matrix.samples) for one in found)) if found else None

    def begin(self, now: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Keep the state before the update: weights, second moments, learning rates."""
        self.is_measured = True
        for part, before in zip(self._parts, now, strict=True):
            part.begin(before, part.moments.read(optimizer))
            part.rates = learning_rates(part.matrix.groups)

    def let_go(self) -> None:
        """Drop what was kept of the update in progress."""
        self.is_measured = False
        for part in self._parts:
            part.begin(None, None)

    def take_gradients(self, gradient_of: GradientOf, scale: torch.Tensor | None) -> None:
        """Read the gradients the optimizer gets, which are still multiplied by `scale`."""
        for part in self._parts:
            part.take_gradients(gradient_of, scale)

    def measured(
        self, after: list[torch.Tensor], optimizer: torch.optim.Optimizer, counts_bins: bool
    ) -> tuple[LateRows, int, LateBins | None]:
        """Return what this update has done, the most rows that may be, and with `counts_bins` their distributions."""
        changes = [part.changes(new) for part, new in zip(self._parts, after, strict=True)] if counts_bins else []
        found = [part.measured(new, optimizer) for part, new in zip(self._parts, after, strict=True)]
        skipped = getattr(optimizer, "found_inf", None)
        was_skipped = None if skipped is None else fetch_later(torch.stack([skipped.reshape(())]))
        most = 5 * sum(len(one.matrix.samples) for one in found)
        return update_rows(found, was_skipped), most, update_bins(found, changes) if counts_bins else None


def _matrix_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for samples of a parameter of that dtype."""
    if dtype.is_complex:
        return torch.complex128 if dtype is torch.complex128 else torch.complex64
    return torch.float64 if dtype is torch.float64 else torch.float32


def _local(held: Any) -> torch.Tensor:
    return held.to_local() if hasattr(held, "to_local") else held  # type: ignore[no-any-return]


def _read(sample: Sample) -> torch.Tensor:
    local = _local(sample.piece.held)
    return sample.read(local if sample.piece.part is None else local.reshape(-1)[sample.piece.part])
