"""What hashes of the rows of a batch have in common on all backends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_ROWS = 1024
MAX_ELEMENTS = 4096
SAME_FOR_MANY = ("mask", "position", "token_type")
"""Inputs whose rows are equal in different batches, by parts of their names."""


def mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix numbers so that every bit depends on every bit of the input (the finalizer of splitmix64)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
