"""Arrays in responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
"""NaN and Inf are null in JSON."""
Steps = npt.NDArray[np.int64]
