"""Statistics: numbers derived from a Summary, one function each.

A module in this folder adds statistics by decorating functions with `statistic`. Each takes Summaries (a float64 table,
columns as in `vario.core.records.COLUMNS`) and returns one number per row. `needs` names the columns it reads; columns
that no statistic needs are never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.core.records import Table
from vario.core.registry import Registry

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statistic:
    """One derived number."""

    name: str
    needs: tuple[str, ...]
    measure: Callable[[Table], Values]
    doc: str
    module: str
    """The module that defines it, shown by the registry."""

    def __call__(self, summaries: Table) -> Values:
        """Return one number per row, without warnings about NaN and Inf."""
        with np.errstate(all="ignore"):
            return self.measure(summaries)


def statistic(*needs: str) -> Callable[[Callable[[Table], Values]], Statistic]:
    """Turn a function over Summaries into a registered statistic with the function's name."""

    def wrap(measure: Callable[[Table], Values]) -> Statistic:
        name = measure.__name__.rstrip("_")
        doc = (measure.__doc__ or "").strip().splitlines()[0]
        return Statistic(name, ("count", *needs), measure, doc, measure.__module__)

    return wrap


STATISTICS: Registry[Statistic] = Registry(
    "statistics", __name__, lambda part: part.name if isinstance(part, Statistic) else None
)


def columns_needed(names: Iterable[str]) -> frozenset[str]:
    """Return the Summary columns some statistics read. NaN and Inf are always counted."""
    needed = {"count", "sum", "nans", "infs"}
    for name in names:
        needed.update(STATISTICS.get(name, "statistics").needs)
    return frozenset(needed)
