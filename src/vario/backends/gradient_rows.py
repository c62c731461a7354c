"""What a model's gradients look like at one moment: one Summary per parameter, and who has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vario.core.records import Table


@dataclass(frozen=True)
class GradientRows:
    """The Summaries of all gradients, fetched from their devices at once."""

    names: Sequence[str]
    summaries: Table
    """One row per name."""
    missing: Sequence[str]
    """Parameters that could have a gradient and have none: nothing used them."""
    num_frozen: int
    """Parameters that need no gradient."""
    unread: Sequence[str] = ()
    """Parameters whose gradient shows no numbers, such as a sparse one that would have to be sorted first."""
