"""A few thousand elements of every parameter, the same ones each time, read in a handful of operations.

The sample of a parameter is evenly strided over the piece this rank holds, as it lies in memory. All samples of one
device stand in one matrix, a row each, short rows filled up with zeros: to read them is to concatenate strided views.
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

from vario.backends.torch.engines.base import Piece
from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table, empty_table

MAX_SAMPLE = 4096
"""Elements read of one parameter."""
MAX_MATRIX = 1 << 22
"""Elements read of all parameters together; where there are very many, each has a smaller sample."""
MAX_HOST_MATRIX = 1 << 16
"""The same of those on the CPU, where reading takes the training's own time."""
LEAST_SAMPLE = 16
"""Elements read of one parameter, however many there are."""

_flatten = torch._C._nn.flatten_dense_tensors


def sample_size(device: torch.device, num_parameters: int) -> int:
    """How many elements of each parameter on a device are read at most."""
    most = MAX_HOST_MATRIX if device.type == "cpu" else MAX_MATRIX
    return max(LEAST_SAMPLE, min(MAX_SAMPLE, most // max(1, num_parameters)))


def stride_over(num_elements: int, row_length: int, most: int = MAX_SAMPLE) -> int:
    """The distance between sampled elements that leaves at most so many and does not favour any row or column."""
    stride = max(1, -(-num_elements // most))
    if stride == 1:
        return 1
    while math.gcd(stride, num_elements) != 1 or _walks_along_a_line(stride, row_length):
        stride += 1
    return stride


def _walks_along_a_line(stride: int, row_length: int) -> bool:
    """Whether steps of this size stay near one column, or on a diagonal: a weight may be special there."""
    if row_length <= 8 or stride <= row_length // 2:
        return False
    return not 0.2 <= stride % row_length / row_length <= 0.8


@dataclass(slots=True)
class Sample:
    """Which elements of one piece are read, and where they lie."""

    piece: Piece
    shape: torch.Size
    strides: tuple[int, ...]
    """Of the memory that the sample walks through."""
    is_seen_in_memory: bool
    """Whether the piece fills its memory, so that its sample can be a view."""
    stride: int
    count: int
    _index: dict[torch.device, tuple[torch.Tensor, ...]] | None = None

    @classmethod
    def of(cls, piece: Piece, most: int) -> Sample | None:
        """The sample of a piece; None for whole numbers and what is not dense."""
        local = dense_here(piece.cut(piece.held))
        if local is None or not (local.is_floating_point() or local.is_complex()):
            return None
        num_elements = local.numel()
        stride = stride_over(num_elements, local.shape[-1] if local.dim() > 1 else 0, most)
        is_dense = bool(torch.ops.aten.is_non_overlapping_and_dense(local))
        strides = local.stride() if is_dense else torch.empty(local.shape, device="meta").stride()
        return cls(piece, local.shape, strides, is_dense, stride, -(-num_elements // stride))

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sampled elements of a tensor of the same shape: a view where it lies in memory as the piece does.

        Of a small CPU tensor that is the tensor itself, in its own shape: a view of each of very many costs more.
        """
        if self.stride == 1 and tensor.is_cpu and tensor.is_contiguous() and tensor.stride() == self.strides:
            return tensor
        if tensor.stride() == self.strides:
            return tensor.as_strided((self.count,), (self.stride,), tensor.storage_offset())
        return tensor[self._places(tensor.device)]

    def _places(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The same elements by their coordinates, for tensors that lie in memory some other way."""
        self._index = self._index or {}
        found = self._index.get(device)
        if found is None:
            offsets = torch.arange(0, self.count * self.stride, self.stride, device="cpu")
            coordinates: dict[int, torch.Tensor] = {}
            for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
                # The stride of an axis of one element says nothing: a column's is that of the axis beside it.
                if self.shape[axis] == 1:
                    coordinates[axis] = torch.zeros_like(offsets)
                    continue
                coordinates[axis] = offsets // self.strides[axis]
                offsets = offsets % self.strides[axis]
            found = tuple(coordinates[axis].to(device) for axis in range(len(self.shape)))
            self._index[device] = found
        return found


def dense_here(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense part of a tensor that lies on this rank, without a copy; None where there is no such thing."""
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_cuda:
        return tensor if tensor.numel() else None  # almost all there are, by the hundred
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return None
    if is_traceable_wrapper_subclass(tensor) or hasattr(tensor, "fake_mode"):
        return None  # packed, or not real
    if not tensor.numel() or not tensor.untyped_storage().size():
        return None  # FSDP and ZeRO take the memory away from what is elsewhere at the moment
    return tensor


Runs = list[list[torch.Tensor]]
"""Views to concatenate into one matrix."""


class Matrix:
    """The samples of parameters on one device: reads them, or anything that is laid out as they are, into rows."""

    def __init__(self, samples: Sequence[Sample], device: torch.device, dtype: torch.dtype) -> None:
        self.samples = samples
        self.device = device
        self.dtype = dtype
        self.width = max(sample.count for sample in samples)
        self.counts = np.array([sample.count for sample in samples], dtype=np.float64)
        own = {id(sample.piece.group): sample.piece.group for sample in samples}
        self.groups = list(own.values())
        """Those of the optimizer that its rows belong to."""
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
        """A number for each row that its group of parameters has."""
        return np.array([number_of(group) for group in self.groups])[self.group_of_row]

    def targets(self, kind: str) -> npt.NDArray[np.object_]:
        """The names of the rows of one kind: `weight:change`."""
        found = self._targets.get(kind)
        if found is None:
            names = [sample.piece.name for sample in self.samples]
            found = np.array([f"{name}:{kind}" if kind else name for name in names], dtype=object)
            self._targets[kind] = found
        return found

    def lay_out(self, parts: Sequence[torch.Tensor | None]) -> Runs:
        """What to concatenate: for each row what `Sample.read` gives, or None for zeros; runs are of one dtype each."""
        runs: list[list[torch.Tensor]] = []
        dtype = None
        for part, sample in zip(parts, self.samples, strict=True):
            own = part.dtype if part is not None else dtype or self.dtype
            if own is not dtype:  # operations on many tensors at once want them alike
                dtype = own
                runs.append([])
            if part is not None:
                runs[-1].append(part)
            if (missing := self.width - (0 if part is None else sample.count)) > 0:
                runs[-1].append(self._zeros_of(own, missing))
        return runs

    def read(self, runs: Runs) -> torch.Tensor:
        """The sampled elements as they are now."""
        flat = [self._joined(run).to(self.dtype) for run in runs]
        return (flat[0] if len(flat) == 1 else torch.cat(flat)).view(len(self.samples), self.width)

    def _joined(self, run: list[torch.Tensor]) -> torch.Tensor:
        if self.device.type != "cpu":
            return torch.cat(run)
        # Of a single tensor the first would be a view, which changes with it.
        return _flatten(run) if len(run) > 1 else torch.cat([run[0].reshape(-1)])

    def _zeros_of(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        found = self._zeros.get((dtype, count))
        if found is None:
            found = self._zeros[dtype, count] = torch.zeros(count, dtype=dtype, device=self.device)
        return found

    def summaries(self, values: torch.Tensor) -> torch.Tensor:
        """Columns of the Summary of each row, of exact zeros and with the norm instead of its square, but the count."""
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
        """What `summaries` gave, on the host: Summaries."""
        table = empty_table(len(self.samples))
        table[:, COUNT] = self.counts
        for place, column in zip((SUM, SUM_SQUARES, MIN, MAX, NANS, INFS, ZEROS), columns, strict=True):
            table[:, place] = column
        table[:, SUM_SQUARES] **= 2
        table[:, ZEROS] -= self.width - self.counts
        table[table[:, MIN] > table[:, MAX], MIN : MAX + 1] = np.nan
        return table


def magnitudes_if_complex(values: torch.Tensor) -> torch.Tensor:
    """Real numbers as they are; complex ones are measured by their magnitudes."""
    return values.abs() if values.is_complex() else values


def wide_dtype(device: torch.device) -> torch.dtype:
    """What sums are kept in: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
