"""Which elements of a parameter stand for all of it: evenly strided, and the same ones each time."""

from __future__ import annotations

import math

MAX_SAMPLE = 4096
"""The most elements read per parameter."""
MAX_HOST_MATRIX = 1 << 16
"""The most elements read of all parameters together on the CPU, where reading takes the training's own time."""
LEAST_SAMPLE = 16
"""Elements read per parameter at least, however many parameters there are."""


def stride_over(num_elements: int, row_length: int, most: int = MAX_SAMPLE) -> int:
    """Return the distance between sampled elements that gives at most `most` and favours no row or column."""
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
