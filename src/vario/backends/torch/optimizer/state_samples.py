"""What changes an optimizer's state between two of its updates.

A tensor that was not replaced and whose version is the same has not been written: that is all that is read in most
steps. Where it was written, values decide. The old ones are those of the old tensors, which are kept if they are small;
of a large state a few elements are copied after each update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.protocols.observing import LateRows
from vario.backends.torch.engines.base import Piece
from vario.backends.torch.optimizer.element_samples import dense_here
from vario.core.records import Table, empty_table

KEYS = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer"),
    *("square_avg", "grad_avg", "acc_delta", "sum", "row_var", "col_var", "variance", "step"),
)
"""What torch's optimizers call their moments and their count of updates. Others may keep what a loop writes itself."""
_ELEMENTS = 16
"""How many elements of each tensor are compared, spread over it."""
_MOST_PIECES, _FEW_PIECES = 128, 16
"""The most parameters whose state is checked, spread over the model, and of how many large ones elements are copied."""
_SMALL_BYTES = 64 << 20
"""A state of this size is kept until the next update if something replaces it."""

Entry = tuple[str, str, torch.Tensor]
"""The name of a parameter, the key of its state, and the tensor."""
Sample = npt.NDArray[np.float64]


class StateSamples:
    """Compares an optimizer's moments before an update with those after the last one."""

    def __init__(self, pieces: Sequence[Piece], most: int = _MOST_PIECES) -> None:
        whole = [piece for piece in pieces if piece.part is None]
        self._pieces = whole[:: -(-len(whole) // most) or 1]
        self._entries: list[Entry] | None = None
        """After the last update; None if there was none."""
        self._versions: list[int] = []
        self._copies: list[torch.Tensor] = []
        """Elements of a large state after the last update, one tensor for each entry."""
        self._is_large: bool | None = None
        self._found: list[Entry] = []
        """The tensors where they were last looked up, and what held them."""
        self._holders: list[tuple[torch.Tensor, Any]] = []
        self._places: list[tuple[Any, str, torch.Tensor]] = []

    def go_on_from(self, known: StateSamples) -> None:
        """Take over what was noted after the last update."""
        self._entries, self._versions, self._copies = known._entries, known._versions, known._copies
        self._is_large = known._is_large

    def forget(self) -> None:
        """Compare nothing with what was noted."""
        self._entries = None
        self._copies = []

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the state after an update."""
        entries = self._look(optimizer) if not self._is_there(optimizer) else self._found
        if self._is_large is None and entries:
            size = sum([tensor.numel() * tensor.element_size() for _, _, tensor in entries])
            self._is_large = size > _SMALL_BYTES
            if self._is_large:
                self._pieces = self._pieces[:: -(-len(self._pieces) // _FEW_PIECES)]
                entries = self._look(optimizer)
        self._entries, self._versions = entries, _versions(entries)
        self._copies = [_elements(tensor).clone() for _, _, tensor in entries] if self._is_large else []

    def changes(self, optimizer: torch.optim.Optimizer) -> tuple[LateRows, int] | None:
        """Return what has changed since the last update, and the most rows that may be."""
        before, versions, copies = self._entries, self._versions, self._copies
        self._entries = None
        if not before:
            return None
        if self._is_there(optimizer) and before is self._found and versions == _versions(before):
            return None
        now = self._look(optimizer)
        if self._is_large:
            old = {entry[:2]: copy for entry, copy in zip(before, copies, strict=True)}
        else:
            # What was written in place is gone.
            old = {
                entry[:2]: _elements(entry[2]).clone()
                for entry, was, version in zip(before, versions, _versions(before), strict=True)
                if was == version
            }
        new = {entry[:2]: _elements(entry[2]).clone() for entry in now}
        there = {entry[:2]: (id(entry[2]), version) for entry, version in zip(now, _versions(now), strict=True)}
        written = [
            entry[:2]
            for entry, version in zip(before, versions, strict=True)
            if there.get(entry[:2]) != (id(entry[2]), version)
        ]
        return lambda: _rows(written, old, new), len(before)

    def _look(self, optimizer: torch.optim.Optimizer) -> list[Entry]:
        state: Any = optimizer.state
        self._holders = [(piece.held, state.get(piece.held)) for piece in self._pieces]
        found: list[Entry] = []
        self._places = []
        for piece, (_, own) in zip(self._pieces, self._holders, strict=True):
            for key in KEYS if own else ():
                if isinstance(tensor := own.get(key), torch.Tensor):
                    found.append((piece.name, key, tensor))
                    self._places.append((own, key, tensor))
        self._found = found
        return found

    def _is_there(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether every tensor of the state is the one that was looked up last."""
        get = optimizer.state.get
        return (
            bool(self._found)
            # As lists: a generator costs a call for each.
            and all([get(held) is own for held, own in self._holders])  # noqa: C419
            and all([own.get(key) is tensor for own, key, tensor in self._places])  # noqa: C419
        )


def _versions(entries: Sequence[Entry]) -> list[int]:
    try:
        return [tensor._version for _, _, tensor in entries]
    except RuntimeError:
        return [0] * len(entries)  # tensors made in inference mode have none


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """A few elements, spread over this rank's part of a tensor; none if it has no plain numbers."""
    local = dense_here(tensor)
    if local is None or not local.is_floating_point():
        return torch.zeros(0)
    flat = local.detach().reshape(-1)
    return flat[:: -(-flat.numel() // _ELEMENTS)]


Key = tuple[str, str]


def _rows(
    written: Sequence[Key], old: dict[Key, torch.Tensor], new: dict[Key, torch.Tensor]
) -> tuple[Sequence[str], Table]:
    """`NAME:KEY` for what changed, `NAME:KEY:reset` if it is gone, `NAME:KEY:from:OTHER` if it is another's."""
    before, now = ({key: one.double().cpu().numpy() for key, one in each.items()} for each in (old, new))
    targets: list[str] = []
    tables: list[Table] = []
    for key in written:
        was, found = before.get(key), now.get(key, np.zeros(0))
        if was is not None and np.array_equal(was, found, equal_nan=True):
            continue
        owners = [
            other[0]
            for other, value in before.items()
            if other[1] == key[1] and other != key and len(found) > 1 and np.array_equal(value, found)
        ]
        if not found.any():
            kind, change = ":reset", np.ones(1) if was is None else -was
        else:
            kind = f":from:{owners[0]}" if owners else ""
            change = found if was is None or len(was) != len(found) else found - was
        if change.any():
            targets.append(f"{key[0]}:{key[1]}{kind}")
            tables.append(_summary(change))
    return targets, np.concatenate([empty_table(0), *tables])


def _summary(values: Sample) -> Table:
    good = values[np.isfinite(values)]
    low, high = (float(good.min()), float(good.max())) if len(good) else (np.inf, -np.inf)
    columns = [len(values), good.sum(), (good**2).sum(), low, high, np.isnan(values).sum(), np.isinf(values).sum()]
    return np.array([[*columns, (values == 0).sum()]], np.float64)
