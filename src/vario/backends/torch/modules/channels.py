"""How large the channels of a tensor are: computed where the tensor is, and a few numbers of it brought to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from vario.backends.protocols.observing import Later
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.aten import AtenRows
from vario.backends.torch.reduce.tensors import aside, is_inside_transform, local_part
from vario.core.elements.channels import MOST, Channel, TopChannels, encode
from vario.core.records import COLUMNS, Table, empty_table

_LEAST = 2
"""A single channel is the whole tensor."""


@dataclass(frozen=True)
class ChannelSizes:
    """The sizes of one tensor's channels, on their way to the host."""

    target: str
    num_channels: int
    numbers: Later
    """The Summary of the channels' largest magnitudes; the norm; then magnitude, norm and number of the largest."""

    def rows(self) -> tuple[Sequence[str], Table]:
        """Return the Summary over the channels."""
        table = empty_table(1)
        table[0] = self.numbers()[: len(COLUMNS)]
        return (self.target,), table

    def detail(self) -> Mapping[str, bytes]:
        """Return the largest channels, as stored."""
        found = self.numbers()[len(COLUMNS) :]
        norm, rest = float(found[0]), found[1:].reshape(3, -1)
        channels = tuple(Channel(int(index), float(most), float(size)) for most, size, index in rest.T)
        return {self.target: encode(TopChannels(self.num_channels, norm, channels))}


def channel_sizes(target: str, tensor: object, kind: str, eps: float = 0.0) -> ChannelSizes | None:
    """Start to measure the `rows` or `columns` of a matrix, or the `features` of an activation; None if it has none."""
    if not isinstance(tensor, torch.Tensor) or is_inside_transform() or not _has_channels(tensor, kind):
        return None
    part = local_part(tensor)
    if part is None or part.layout is not torch.strided or not part.is_floating_point() or not part.numel():
        return None
    with torch.no_grad(), aside(part.device):
        matrix = _by_channel(part, kind)
        if matrix.shape[1] < _LEAST:
            return None
        largest = matrix.abs().amax(0)
        wide = torch.float32 if part.device.type == "mps" else torch.float64
        sizes = torch.linalg.vector_norm(matrix, dim=0, dtype=wide)
        order = torch.topk(largest, min(MOST, len(largest))).indices
        summary = AtenRows(part.device, eps).summary(largest)
        whole = torch.linalg.vector_norm(sizes).reshape(1)
        numbers = torch.cat([summary, whole, largest[order].to(wide), sizes[order], order.to(wide)])
        return ChannelSizes(target, matrix.shape[1], fetch_later(numbers))


def _has_channels(tensor: torch.Tensor, kind: str) -> bool:
    if kind == "features":
        return tensor.ndim > 1
    if tensor.ndim != 2:
        return False
    placements = getattr(tensor, "placements", ())
    # Of a matrix that is split by rows each rank has some rows, whose numbers it does not know, and all columns.
    is_by_rows = all(place.is_replicate() or (place.is_shard() and place.dim == 0) for place in placements)
    return is_by_rows and (kind == "columns" or all(place.is_replicate() for place in placements))


def _by_channel(part: torch.Tensor, kind: str) -> torch.Tensor:
    """Return a matrix whose columns are the channels."""
    if kind == "rows":
        return part.T
    if kind == "columns":
        return part
    # Of images the channels come second, of anything else last.
    moved = part.movedim(1, -1) if part.ndim > 3 else part
    return moved.reshape(-1, moved.shape[-1])


def chosen_modules(modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the modules whose outputs are measured: those that compute something themselves, and blocks."""
    return [name for name, module in modules.items() if not isinstance(module, (nn.Dropout, nn.Identity))]
