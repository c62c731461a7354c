"""Attention masks among activations: they contain -inf on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vario.core.records import COUNT, INFS, MAX, MIN, NANS, ZEROS, Table


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
