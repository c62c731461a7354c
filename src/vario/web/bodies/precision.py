"""Distributions of tensors, what lower precisions would lose, and channels."""

from __future__ import annotations

from typing import TypedDict

from vario.runs.views.tensors.channels import TensorChannels
from vario.runs.views.tensors.precision import TensorPrecision


class Precision(TypedDict):
    """What each tensor would lose in a lower precision."""

    steps: dict[str, int]
    """The step each quantity was read at."""
    tensors: list[TensorPrecision]
    """Those that lose most first."""
    num_tensors: int
    """How many there are; only the first ones are listed."""


class DistributionPicture(TypedDict):
    """How one tensor's elements are distributed over powers of two, over steps."""

    target: str
    quantity: str
    steps: list[int]
    exponents: list[int]
    """Those of the rows: a row has magnitudes from 2 to this power up to the next one."""
    shares: list[list[float]]
    """Per step, the share of all its elements in each row."""
    zeros: list[float]
    """Per step, the share of zeros."""
    bad: list[int]
    """Per step, the number of NaN and Inf."""


class Channels(TypedDict):
    """The largest channels of weights and activations."""

    tensors: list[TensorChannels]
    """The most uneven first."""
    num_tensors: int
