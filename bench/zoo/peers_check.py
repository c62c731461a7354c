"""Whether our copy of msprobe's two rules decides as the installed package does, on one recorded run.

PYTHONPATH=.peers/26.2.0:.peers/common python bench/zoo/peers_check.py RUN [THRESHOLD]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from zoo.peers import turbulence
from zoo.tables import SeriesTable, read_table

Decision = tuple[int, str, str, int]


def package_decisions(table: SeriesTable, threshold: float) -> Iterator[Decision]:
    """What the package's own classes say, fed one value at a time as its writer feeds them."""
    from msprobe.core.monitor.anomaly_processor import AnomalyScanner  # type: ignore[import-not-found]

    rules = AnomalyScanner.load_rules(
        [{"rule_name": "AnomalyTurbulence", "args": {"threshold": threshold}}, {"rule_name": "AnomalyNan"}]
    )
    for i, name in enumerate(table.names):
        for values in (table.norm[:, i], table.mean[:, i]):
            average: float | None = None
            for position, step in enumerate(table.steps):
                if not table.bad[position, i] >= 0:
                    continue
                value = float(values[position])
                history = abs(value) if average is None else average
                average = 0.99 * history + (1 - 0.99) * abs(value)
                is_bad, rule = AnomalyScanner.scan(rules, history, value)
                if is_bad:
                    yield int(step), rule, f"{name.target}/{name.quantity}", name.rank


def main() -> None:
    table, threshold = read_table(Path(sys.argv[1])), float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    with np.errstate(all="ignore"):
        theirs = sorted(package_decisions(table, threshold))
    found = partial(turbulence, threshold=threshold)(table)
    ours = sorted((line.step, line.rule, str(line.target), int(line.rank or 0)) for line in found)
    differing = len(set(ours) ^ set(theirs)) + abs(len(ours) - len(theirs))
    print(f"{len(theirs)} alerts of the package, {len(ours)} of ours, {differing} differ")


if __name__ == "__main__":
    main()
