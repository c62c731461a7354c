"""Arrays in answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
"""Null in JSON where it is NaN or Inf."""
Steps = npt.NDArray[np.int64]
