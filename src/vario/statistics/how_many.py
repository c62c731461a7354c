"""How many? Elements, and those that are NaN, infinite or nearly zero."""

from __future__ import annotations

from vario.core.records import COUNT, INFS, NANS, ZEROS, Table
from vario.statistics import Values, statistic


@statistic()
def count(summaries: Table) -> Values:
    """Number of elements."""
    return summaries[:, COUNT]


@statistic("nans")
def nans(summaries: Table) -> Values:
    """Number of NaN elements."""
    return summaries[:, NANS]


@statistic("infs")
def infs(summaries: Table) -> Values:
    """Number of infinite elements."""
    return summaries[:, INFS]


@statistic("zeros")
def zeros(summaries: Table) -> Values:
    """Share of elements smaller in magnitude than `eps`."""
    return summaries[:, ZEROS] / summaries[:, COUNT]
