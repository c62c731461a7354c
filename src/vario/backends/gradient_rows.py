"""A model's gradients at one moment: one Summary per parameter, and the parameters without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vario.core.records import Table


@dataclass(frozen=True)
class GradientRows:
    """The Summaries of all gradients, copied from their devices in one transfer."""

    names: Sequence[str]
    summaries: Table
    """One row per name."""
    missing: Sequence[str]
    """Parameters that could have a gradient and have none: nothing used them."""
    num_frozen: int
    """Parameters that require no gradient."""
    unread: Sequence[str] = ()
    """Parameters whose gradient cannot be read, such as a sparse one that would have to be sorted first."""
