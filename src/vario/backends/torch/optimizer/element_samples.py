"""A few thousand elements of every parameter, the same ones each time, read in a handful of operations.

The sample of a parameter is evenly strided over this rank's piece, in memory order. All samples of one device form one
matrix, one row each, short rows padded with zeros: reading them means concatenating strided views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vario.backends.element_strides import LEAST_SAMPLE, MAX_HOST_MATRIX, MAX_SAMPLE, stride_over
from vario.backends.torch.engines.base import Piece
from vario.backends.torch.reduce import memory_reads
from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table, empty_table

MAX_MATRIX = 1 << 22
"""The most elements read of all parameters together; with very many, each has a smaller sample."""

_flatten = torch._C._nn.flatten_dense_tensors


def sample_size(device: torch.device, num_parameters: int) -> int:
    """Return the most elements read per parameter on a device."""
    most = MAX_HOST_MATRIX if device.type == "cpu" else MAX_MATRIX
    return max(LEAST_SAMPLE, min(MAX_SAMPLE, most // max(1, num_parameters)))


@dataclass(slots=True)
class Sample:
    """Which elements of one piece are read, and where they are."""

    piece: Piece
    shape: torch.Size
    strides: tuple[int, ...]
    """Strides of the memory that the sample walks through."""
    is_seen_in_memory: bool
    """Whether the piece fills its memory, so that its sample can be a view."""
    stride: int
    count: int
    _index: dict[torch.device, tuple[torch.Tensor, ...]] | None = None

    @classmethod
    def of(cls, piece: Piece, most: int) -> Sample | None:
        """Return the sample of a piece; None for integers and tensors that are not dense."""
        local = dense_here(piece.cut(piece.held))
        if local is None or not (local.is_floating_point() or local.is_complex()):
            return None
        num_elements = local.numel()
        stride = stride_over(num_elements, local.shape[-1] if local.dim() > 1 else 0, most)
        is_dense = bool(torch.ops.aten.is_non_overlapping_and_dense(local))
        strides = local.stride() if is_dense else torch.empty(local.shape, device="meta").stride()
        return cls(piece, local.shape, strides, is_dense, stride, -(-num_elements // stride))

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sampled elements of a tensor of the same shape: a view if its memory layout is that of the piece.

        For a small CPU tensor that is the tensor itself, in its own shape: views of very many cost more.
        """
        if self.stride == 1 and tensor.is_cpu and tensor.is_contiguous() and tensor.stride() == self.strides:
            return tensor
        if tensor.stride() == self.strides:
            return tensor.as_strided((self.count,), (self.stride,), tensor.storage_offset())
        return tensor[self._places(tensor.device)]

    def _places(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the coordinates of the same elements, for tensors with another memory layout."""
        self._index = self._index or {}
        found = self._index.get(device)
        if found is None:
            offsets = torch.arange(0, self.count * self.stride, self.stride, device="cpu")
            coordinates: dict[int, torch.Tensor] = {}
            for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
                # The stride of an axis with one element says nothing: a column's is that of the axis beside it.
                if self.shape[axis] == 1:
                    coordinates[axis] = torch.zeros_like(offsets)
                    continue
                coordinates[axis] = offsets // self.strides[axis]
                offsets = offsets % self.strides[axis]
            found = tuple(coordinates[axis].to(device) for axis in range(len(self.shape)))
            self._index[device] = found
        return found


def dense_here(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return this rank's dense part of a tensor, without a copy; None if there is none."""
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_cuda:
        return tensor if tensor.numel() else None  # the usual case, by the hundred
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return None
    if is_traceable_wrapper_subclass(tensor) or hasattr(tensor, "fake_mode"):
        return None  # packed, or complex
    if not tensor.numel() or not tensor.untyped_storage().size():
        return None  # FSDP and ZeRO free the memory of what is elsewhere at the moment
    return tensor


Runs = list[list[torch.Tensor]]
"""Views to concatenate into one matrix."""


@dataclass(frozen=True)
class InMemory:
    """Where the elements of a matrix are in memory."""

    places: memory_reads.Places
    dtype: torch.dtype
    is_filled_up: torch.Tensor | None
    """Padding elements of shorter rows; None if all rows have the same length."""


class Matrix:
    """The samples of parameters on one device: reads them, or tensors with the same layout, into rows."""

    def __init__(self, samples: Sequence[Sample], device: torch.device, dtype: torch.dtype) -> None:
        self.samples = samples
        self.device = device
        self.dtype = dtype
        self.width = max(sample.count for sample in samples)
        self.counts = np.array([sample.count for sample in samples], dtype=np.float64)
        own = {id(sample.piece.group): sample.piece.group for sample in samples}
        self.groups = list(own.values())
        """The optimizer's groups that its rows belong to."""
        numbers = {number: at for at, number in enumerate(own)}
        self.group_of_row = np.array([numbers[id(sample.piece.group)] for sample in samples], dtype=np.int64)
        self._targets: dict[str, npt.NDArray[np.object_]] = {}
        self._zeros: dict[tuple[torch.dtype, int], torch.Tensor] = {}
        counts = torch.from_numpy(self.counts).to(device=device, dtype=torch.int64)
        is_filled_up = torch.arange(self.width, device=device) >= counts[:, None]
        # Added to rows before their minimum is taken, or subtracted before their maximum.
        self._beyond = torch.zeros(is_filled_up.shape, dtype=dtype.to_real(), device=device).masked_fill(
            is_filled_up, math.inf
        )

    def by_group(self, number_of: Callable[[Mapping[str, Any]], float]) -> npt.NDArray[np.float64]:
        """Return a number per row, from its parameter group."""
        return np.array([number_of(group) for group in self.groups])[self.group_of_row]

    def targets(self, kind: str) -> npt.NDArray[np.object_]:
        """Return the names of the rows of one kind: `weight:change`."""
        found = self._targets.get(kind)
        if found is None:
            names = [sample.piece.name for sample in self.samples]
            found = np.array([f"{name}:{kind}" if kind else name for name in names], dtype=object)
            self._targets[kind] = found
        return found

    def lay_out(self, parts: Sequence[torch.Tensor | None]) -> Runs:
        """Return what to concatenate: per row the result of `Sample.read`, or None for zeros; a run has one dtype."""
        runs: list[list[torch.Tensor]] = []
        dtype = None
        for part, sample in zip(parts, self.samples, strict=True):
            own = part.dtype if part is not None else dtype or self.dtype
            if own is not dtype:  # operations on many tensors at once need equal dtypes
                dtype = own
                runs.append([])
            if part is not None:
                runs[-1].append(part)
            if (missing := self.width - (0 if part is None else sample.count)) > 0:
                runs[-1].append(self._zeros_of(own, missing))
        return runs

    def lie_in(self, parts: Sequence[torch.Tensor]) -> InMemory | None:
        """Return where the elements of `Sample.read`, all views, are in memory; None if torch should concatenate them.

        Used for very many CPU tensors of one dtype, while their memory stays in place.
        """
        if len(parts) < memory_reads.LEAST_TENSORS or not memory_reads.are_plain(parts):
            return None
        if len({part.dtype for part in parts}) > 1 or any(map(torch.Tensor.is_neg, parts)):
            return None
        first = memory_reads.first_places(parts)
        if first is None:
            return None
        strides = np.array([sample.stride for sample in self.samples])
        at = np.minimum(np.arange(self.width), self.counts.astype(np.int64)[:, None] - 1)
        is_filled_up = np.arange(self.width) >= self.counts[:, None]
        places = first[:, None] + at * strides[:, None]
        return InMemory(places, parts[0].dtype, torch.from_numpy(is_filled_up) if is_filled_up.any() else None)

    def read(self, runs: Runs | InMemory) -> torch.Tensor:
        """Return the current sampled elements."""
        if isinstance(runs, InMemory):
            values = memory_reads.read(runs.places, runs.dtype).to(self.dtype)
            return values if runs.is_filled_up is None else values.masked_fill_(runs.is_filled_up, 0.0)
        flat = [self._joined(run).to(self.dtype) for run in runs]
        return (flat[0] if len(flat) == 1 else torch.cat(flat)).view(len(self.samples), self.width)

    def _joined(self, run: list[torch.Tensor]) -> torch.Tensor:
        if self.device.type != "cpu":
            return torch.cat(run)
        # For a single tensor the first would be a view, which changes with it.
        return _flatten(run) if len(run) > 1 else torch.cat([run[0].reshape(-1)])

    def _zeros_of(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        found = self._zeros.get((dtype, count))
        if found is None:
            found = self._zeros[dtype, count] = torch.zeros(count, dtype=dtype, device=self.device)
        return found

    def summaries(self, values: torch.Tensor) -> torch.Tensor:
        """Return Summary columns per row, without the count; with exact zeros, and the norm instead of its square."""
        values = magnitudes_if_complex(values)
        wide = values.to(wide_dtype(self.device))
        total, norm = wide.sum(dim=1), torch.linalg.vector_norm(wide, dim=1)
        if self.device.type == "cpu" and bool(norm.isfinite().all()):
            nans = infs = torch.zeros_like(total)
            raised, lowered = values + self._beyond, values - self._beyond
        else:
            is_nan = values.isnan()
            nans, infs = is_nan.sum(dim=1), values.isinf().sum(dim=1)
            raised = (values + self._beyond).masked_fill(is_nan, math.inf)
            lowered = (values - self._beyond).masked_fill(is_nan, -math.inf)
        columns = [total, norm, raised.amin(dim=1), lowered.amax(dim=1), nans, infs, (values == 0).sum(dim=1)]
        return torch.stack([column.to(wide.dtype) for column in columns])

    def table(self, columns: npt.NDArray[Any]) -> Table:
        """Return what `summaries` returned, on the host: Summaries."""
        table = empty_table(len(self.samples))
        table[:, COUNT] = self.counts
        for place, column in zip((SUM, SUM_SQUARES, MIN, MAX, NANS, INFS, ZEROS), columns, strict=True):
            table[:, place] = column
        table[:, SUM_SQUARES] **= 2
        table[:, ZEROS] -= self.width - self.counts
        table[table[:, MIN] > table[:, MAX], MIN : MAX + 1] = np.nan
        return table


def magnitudes_if_complex(values: torch.Tensor) -> torch.Tensor:
    """Return real numbers unchanged and complex ones as magnitudes."""
    return values.abs() if values.is_complex() else values


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for sums: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
