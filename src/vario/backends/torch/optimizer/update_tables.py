"""Turn measured columns into the rows of `update` and `unexpected_change`, on the writer thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.bin_counts import count_each
from vario.backends.protocols.observing import LateBins, Later, LateRows
from vario.backends.torch.optimizer.element_samples import Matrix
from vario.backends.torch.optimizer.health import SecondMoments
from vario.core.elements.bins import ZERO, encode
from vario.core.records import COLUMNS, Table, empty_table

Mask = npt.NDArray[np.bool_]
_SUMMARY = len(COLUMNS) - 1
"""Columns of a Summary that are measured; the count is known."""
_NORM = 1


@dataclass(frozen=True)
class Measured:
    """One update, seen in one matrix of samples."""

    matrix: Matrix
    columns: Later
    """The Summary of the change, the norm before; then, if present, the Summary of g²/v and the sums of the second
    moments, each with their update counts if only the device knows them."""
    rates: Later
    """The learning rate of each group."""
    kept: Mask
    """The rows to record: this rank's, of parameters that had a gradient."""
    found: SecondMoments | None
    """The second moments before the update, to compare gradients with."""
    left: SecondMoments | None
    """Those after the update."""


def update_rows(measured: Sequence[Measured], was_skipped: Later | None) -> LateRows:
    """Return the rows of one update; none if a loss scaler skipped it."""

    def make() -> tuple[Sequence[str], Table]:
        if was_skipped is not None and was_skipped()[0]:
            return (), empty_table(0)
        targets: list[str] = []
        tables: list[Table] = []
        for one in measured:
            for kind, table, mask in _kinds(one):
                kept = mask & one.kept
                targets += one.matrix.targets(kind)[kept].tolist()
                tables.append(table[kept])
        return targets, np.concatenate([empty_table(0), *tables])

    return make


def update_bins(measured: Sequence[Measured], changes: Sequence[Later]) -> LateBins:
    """Return the distributions of what one update has changed."""

    def make() -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for one, later in zip(measured, changes, strict=True):
            values = np.ascontiguousarray(later())
            counts = count_each(values.reshape(-1), np.full(len(values), values.shape[1]))
            # Rows are filled up with zeros.
            counts[:, ZERO] -= values.shape[1] - one.matrix.counts.astype(np.int64)
            names = one.matrix.targets("change")[one.kept].tolist()
            found.update(zip(names, encode(counts[one.kept]), strict=True))
        return found

    return make


def _kinds(one: Measured) -> list[tuple[str, Table, Mask]]:
    columns, rates = one.columns(), one.rates()[one.matrix.group_of_row]
    everywhere = np.ones(len(one.matrix.samples), bool)
    kinds = [("change", one.matrix.table(columns[:_SUMMARY]), everywhere)]
    change, before = columns[_NORM], columns[_SUMMARY]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = change / before
        pace = ratio / rates
    kinds.append(("ratio", _numbers(ratio), before != 0))
    kinds.append(("pace", _numbers(pace), (before != 0) & (rates != 0) & np.isfinite(rates)))
    columns = columns[_SUMMARY + 1 :]
    if one.found is not None:
        ratios, (num_updates, columns) = columns[:_SUMMARY], _counted(one.found, columns[_SUMMARY:])
        kinds.append(("grad_vs_second_moment", one.matrix.table(ratios), one.found.exist & (num_updates > 0)))
    if one.left is not None:
        sums, (num_updates, columns) = columns[0], _counted(one.left, columns[1:])
        share = one.left.eps_share(sums, num_updates)
        # If every gradient was zero so far, there is nothing to compare eps with.
        kinds.append(("eps_share", _numbers(share), np.isfinite(share)))
    return kinds


def _counted(moments: SecondMoments, columns: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Split off the update counts of second moments; return them and the remaining columns."""
    if isinstance(moments.num_updates, np.ndarray):
        return moments.num_updates, columns
    return columns[0], columns[1:]


@dataclass(frozen=True)
class Suspected:
    """One matrix of samples before an update, and after the last one."""

    matrix: Matrix
    is_known: Mask
    """The rows whose memory has not moved."""
    now: torch.Tensor
    last: torch.Tensor
    may_differ: Later
    """Rows with differing elements; a NaN counts as differing from itself."""


def unexpected_rows(suspected: Sequence[Suspected]) -> LateRows:
    """Return the rows of what has changed; in healthy training there are none, and only the check costs time."""

    def make() -> tuple[Sequence[str], Table]:
        targets: list[str] = []
        tables: list[Table] = []
        for one in suspected:
            mask = one.may_differ() & one.is_known
            if mask.any():
                with torch.no_grad():
                    has_changed = (one.now != one.last) & ~(one.now.isnan() & one.last.isnan())
                    columns = one.matrix.summaries((one.now - one.last).masked_fill(~has_changed, 0.0)).cpu().numpy()
                    mask = mask & has_changed.any(dim=1).cpu().numpy()
                targets += one.matrix.targets("")[mask].tolist()
                tables.append(one.matrix.table(columns)[mask])
        return targets, np.concatenate([empty_table(0), *tables])

    return make


def _numbers(values: npt.NDArray[Any]) -> Table:
    """Return Summaries of single numbers."""
    values = values.astype(np.float64)
    is_nan, is_inf = np.isnan(values), np.isinf(values)
    columns = [np.ones_like(values), values, values**2, values, values, is_nan, is_inf, values == 0]
    return np.stack([column.astype(np.float64) for column in columns], axis=1)
