"""The second moment of Adam and similar optimizers: how a gradient compares with it, and whether eps dominates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.torch.engines import optimizers
from vario.backends.torch.engines.base import Piece
from vario.backends.torch.optimizer.element_samples import Matrix, Runs, dense_here, wide_dtype

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class SecondMoments:
    """The second moments of the rows of one Matrix at one moment; rows without any are zero."""

    def __init__(self, matrix: Matrix, exist: Mask, values: torch.Tensor, num_updates: Numbers | torch.Tensor) -> None:
        """`exist`: which rows have one."""
        self.exist = exist
        self._matrix = matrix
        self._values = values
        self.num_updates = num_updates
        """How often each row was updated: on the host if the optimizer counts there, otherwise still on the device."""
        self._betas = matrix.by_group(_second_beta)
        self._eps = matrix.by_group(lambda group: _number(group.get("eps")))

    def counted_on_device(self) -> list[torch.Tensor]:
        """Return how often each row was updated, as columns, if only the device knows."""
        counted = self.num_updates
        return [counted.to(self._matrix.device, non_blocking=True)[None]] if isinstance(counted, torch.Tensor) else []

    def grad_vs_second_moment(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return each squared gradient element divided by its bias-corrected second moment.

        Rows without an update have arbitrary values: they are not used. For a complex gradient the real and the
        imaginary part each have a moment, as torch's optimizers keep them; the two ratios are averaged.
        """
        if self._values.is_complex():
            parts = [(gradients.real, self._values.real), (gradients.imag, self._values.imag)]
            both = [self._ratio(gradient, values) for gradient, values in parts]
            return (both[0] + both[1]) / 2
        return self._ratio(gradients, self._values)

    def _ratio(self, gradients: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        dtype = values.dtype
        if isinstance(self.num_updates, torch.Tensor):
            decay = self._by_row(self._betas, self.num_updates.dtype)
            bias = 1.0 - decay ** self.num_updates.to(self._matrix.device)[:, None]
            expected = values / bias.to(dtype)
        else:
            expected = values / self._by_row(1.0 - self._betas**self.num_updates, dtype)
        least = np.maximum(np.nan_to_num(self._eps) ** 2, torch.finfo(dtype).tiny)
        floor = self._by_row(least, dtype)
        ratio: torch.Tensor = gradients * gradients / expected.clamp(min=floor)
        return ratio

    def _by_row(self, numbers: Numbers, dtype: torch.dtype) -> Any:
        """Return one number per row, or a single one if they are all equal: then nothing has to be copied."""
        if (numbers == numbers[0]).all():
            return float(numbers[0])
        tensor = torch.from_numpy(numbers).to(dtype)[:, None]
        if self._matrix.device.type == "cuda":
            # Pinned memory comes from torch's caching allocator, which keeps it until this copy has happened.
            tensor = tensor.pin_memory()
        return tensor.to(self._matrix.device, non_blocking=True)

    def sums(self) -> torch.Tensor:
        """Return the sum of each row; for complex moments the mean of both parts."""
        values = self._values
        real = (values.real + values.imag) / 2 if values.is_complex() else values
        return real.to(wide_dtype(self._matrix.device)).sum(dim=1)

    def eps_share(self, sums: npt.NDArray[Any], num_updates: npt.NDArray[Any]) -> Numbers:
        """Return eps relative to the root of the second moment, from `sums` on the host; NaN if unknown."""
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = sums / self._matrix.counts / (1.0 - self._betas**num_updates)
            return np.where(self.exist, self._eps / np.sqrt(mean), np.nan)


class MomentReader:
    """Reads the second moments of the rows of one Matrix; their location is looked up once."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._known: list[torch.Tensor | None] = []
        self._exist: Mask = np.zeros(0, bool)
        self._runs: Runs = []
        self._counters: list[torch.Tensor] | None = None
        """What counts the updates of each row, if every row has such a tensor."""

    def read(self, optimizer: torch.optim.Optimizer) -> SecondMoments | None:
        """Return the current second moments of an optimizer; None if it has none."""
        states = [_state_of(optimizer, sample.piece) for sample in self._matrix.samples]
        moments = [state.get("exp_avg_sq") for state in states]
        is_new = len(self._known) != len(moments)
        if is_new or any(one is not other for one, other in zip(moments, self._known, strict=True)):
            self._look_up(moments, states)
        if not self._exist.any():
            return None
        return SecondMoments(self._matrix, self._exist, self._matrix.read(self._runs), self._num_updates(states))

    def _look_up(self, moments: Sequence[Any], states: Sequence[Mapping[str, Any]]) -> None:
        parts: list[torch.Tensor | None] = []
        for moment, sample in zip(moments, self._matrix.samples, strict=True):
            local = dense_here(moment) if isinstance(moment, torch.Tensor) else None
            # One with another memory layout could only be copied, and a copy goes stale.
            is_complex = self._matrix.dtype.is_complex
            is_number = local is not None and (local.is_complex() if is_complex else local.is_floating_point())
            fits = local is not None and is_number and local.device == self._matrix.device
            if local is None or not fits or (local.shape, local.stride()) != (sample.shape, sample.strides):
                parts.append(None)
            else:
                parts.append(sample.read(local))
        self._exist = np.array([part is not None for part in parts])
        self._runs = self._matrix.lay_out(parts)
        self._known = list(moments)
        counters = [one for one in (state.get("step") for state in states) if isinstance(one, torch.Tensor)]
        is_alike = len(counters) == len(states) and len({(one.device, one.dim()) for one in counters}) == 1
        self._counters = counters if is_alike and not counters[0].dim() else None

    def _num_updates(self, states: Sequence[Mapping[str, Any]]) -> Numbers | torch.Tensor:
        if self._counters is not None:
            counted = torch.stack(self._counters)
            is_here = counted.device.type == "cpu"
            return counted.double().numpy() if is_here else counted.to(wide_dtype(counted.device))
        counts = [
            state.get("step", sample.piece.group.get("step", 0))  # some count once for the whole group
            for state, sample in zip(states, self._matrix.samples, strict=True)
        ]
        if all(not isinstance(count, torch.Tensor) or count.device.type == "cpu" for count in counts):
            return np.array([float(count) for count in counts])
        device = self._matrix.device
        return torch.stack([_on(count, device) for count in counts]).to(wide_dtype(device))


def _state_of(optimizer: torch.optim.Optimizer, piece: Piece) -> Mapping[str, Any]:
    # `state` is a defaultdict: looking up an unknown parameter would add an entry.
    return optimizers.state_of(optimizer, piece) if piece.part is not None else optimizer.state.get(piece.held, {})


def _second_beta(group: Mapping[str, Any]) -> float:
    """Return the decay of the second moment; 0, which means no bias, if the optimizer does not correct any."""
    betas = group.get("betas")
    if betas is None or not group.get("bias_correction", True):
        return 0.0
    return _number(betas[1])


def _number(value: Any) -> float:
    """Return a setting of an optimizer as a plain number; NaN if reading it would wait for a device."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return float("nan")
    return float("nan") if value is None else float(value)


def _on(count: Any, device: torch.device) -> torch.Tensor:
    if isinstance(count, torch.Tensor) and count.device.type != "cpu":
        return count.reshape(()).to(device, non_blocking=True)
    return torch.full((), float(count), device=device)
