"""Activations whose numbers are no sizes: attention masks, which contain -inf on purpose, and ids of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM, ZEROS, Table

SAME_TENSOR = [COUNT, SUM, MIN, MAX]
"""What is equal in two rows of the same tensor."""


def are_masks(targets: Sequence[str], rows: Table) -> npt.NDArray[np.bool_]:
    """Flag the activations that are masks: zeros and -inf only, or inputs named as masks.

    One that is named as a mask may contain a bias as well, but neither NaN nor +inf.
    """
    with np.errstate(invalid="ignore"):
        hides = (rows[:, NANS] == 0) & (rows[:, INFS] > 0) & (rows[:, MIN] == -np.inf) & (rows[:, MAX] < np.inf)
        is_plain = (rows[:, MAX] == 0) & (np.isnan(rows[:, ZEROS]) | (rows[:, INFS] + rows[:, ZEROS] == rows[:, COUNT]))
    found: npt.NDArray[np.bool_] = hides & is_plain
    for row in np.flatnonzero(hides & ~is_plain).tolist():
        found[row] = ":input" in targets[row] and "mask" in targets[row].rpartition(":")[2]
    return found


def are_ids(targets: Sequence[str], rows: Table, lookups: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Flag the inputs of embeddings, whose names begin as `lookups`, and other inputs that are the same tensor.

    A model gets the ids that its embedding looks up.
    """
    found = np.array([bool(lookups) and name.startswith(lookups) for name in targets], np.bool_)
    known = {tuple(row) for row in rows[found][:, SAME_TENSOR].tolist()}
    if known:
        same = [tuple(row) in known for row in rows[:, SAME_TENSOR].tolist()]
        found |= [":input" in name and is_same for name, is_same in zip(targets, same, strict=True)]
    return found
