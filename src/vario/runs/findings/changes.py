"""Ranks all series of a run by how much they changed recently."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from vario.core.errors import ConfigError
from vario.core.text import unknown
from vario.runs.files.listing_cache import listings_cached
from vario.runs.findings.movements import Movement, find_movements
from vario.runs.reader import RunReader
from vario.runs.views.grid import FEW_CELLS, Grid, Steps, Values, read_big_grid, read_grid

LEAST_WINDOW, MOST_WINDOW = 5, 50
BASE_WINDOWS = 10
"""The length of the past to compare with, as a multiple of the window."""
MOST_CELLS = 1_500_000
"""The most targets times points of one quantity that are compared, to limit memory."""
PASSED_OVER = ("checksum", "communication")
"""Quantities whose numbers have no meaningful size."""
COMMON_SHARE, FEWEST_IN_COMMON = 0.5, 4
FAMILIES = dict.fromkeys(("gradient_local", "gradient_accumulated", "gradient_applied"), "gradient") | {
    "weight_before": "weight",
    "moment_before": "moment",
}
"""Quantities that are the same tensor at different points of a step."""


@dataclass(frozen=True)
class Change:
    """One recent change."""

    quantity: str
    target: str
    statistic: str
    kind: str
    """non-finite, constant, level, trend, spike, drop or spread."""
    before: float
    after: float
    step: int
    """Where it began."""
    score: float
    """Its size, weighted by how much it stands out from the series' own spread."""
    deviations: float
    """The change in units of the series' own spread."""
    values: Values
    """The series: the past that is compared, and the window."""
    same: tuple[str, ...] = ()
    """Other series with the same change: `quantity of target`."""
    num_alike: int = 1
    """How many targets of this quantity changed like this, if most did."""
    num_targets: int = 1
    """How many targets this quantity has."""


@dataclass(frozen=True)
class Ranking:
    """Recent changes in a run, largest first."""

    changes: tuple[Change, ...]
    num_series: int
    """How many series were compared."""
    last_step: int | None
    window_steps: int | None
    """How many steps count as recent; None if that depends on how often a quantity is watched."""


@listings_cached()
def rank_changes(
    run: RunReader, last: int | None = None, quantity: str | None = None, top: int | None = None
) -> Ranking:
    """Compare the last steps of every series with those before; `last`: number of steps (default: a tenth of the
    run)."""
    if last is not None and last < 1:
        raise ConfigError(f"last: expected a number of steps of at least 1, got {last}")
    recorded = run.quantities("all") if run.ranks else []
    if quantity is not None and quantity not in recorded:
        raise ConfigError(unknown("quantity", quantity, recorded))
    wanted = [name for name in recorded if name not in PASSED_OVER] if quantity is None else [quantity]
    changes: list[Change] = []
    num_series = 0
    for name in wanted:
        steps = run.steps(name, "all")
        if not len(steps):
            continue
        num_targets = len(run.targets(name))
        window = _window(steps, last, num_targets)
        # Earlier steps are not needed, so do not read them: a run may be far longer.
        compared = steps[max(0, len(steps) - window * (1 + BASE_WINDOWS)) :]
        is_big = name != "scalar" and num_targets * len(compared) > FEW_CELLS
        grid = (read_big_grid if is_big else read_grid)(run, name, int(compared[0]))
        num_series += len(grid) * len(grid.statistics)
        changes += _together(_best(_changes(grid, window)), len(grid))
    ordered = sorted(_grouped(changes), key=lambda change: -change.score)
    return Ranking(tuple(ordered[:top]), num_series, run.last_step, last)


def _window(steps: Steps, last: int | None, num_targets: int) -> int:
    """How many of the last points count as recent; fewer if there are too many targets to fit."""
    fitting = max(LEAST_WINDOW, MOST_CELLS // (1 + BASE_WINDOWS) // max(1, num_targets))
    if last is not None:
        return min(fitting, int((steps > int(steps[-1]) - last).sum()))
    return min(fitting, int(np.clip(len(steps) // 10, LEAST_WINDOW, MOST_WINDOW)))


def _changes(grid: Grid, window: int) -> Iterator[Change]:
    if not len(grid.steps):
        return
    first = max(0, len(grid.steps) - window * (1 + BASE_WINDOWS))
    steps = grid.steps[first:]
    for statistic, table in grid.statistics.items():
        values = table[:, first:]
        size = grid.statistics["rms"][:, first:] if statistic == "mean" and "rms" in grid.statistics else None
        for movement in find_movements(values, grid.bad[:, first:], window, statistic, size):
            yield _change(grid, statistic, steps, values, movement)


def _change(grid: Grid, statistic: str, steps: Steps, values: Values, movement: Movement) -> Change:
    return Change(
        quantity=grid.quantity,
        target=grid.targets[movement.row],
        statistic=statistic,
        kind=movement.kind,
        before=movement.before,
        after=movement.after,
        step=int(steps[movement.column]),
        # If several became non-finite in one step, the first observed counts most.
        score=movement.score - (min(grid.order[movement.row], 1e6) / 1e6 if movement.kind == "non-finite" else 0.0),
        deviations=movement.deviations,
        values=values[movement.row],
        num_targets=len(grid),
    )


def _best(changes: Iterable[Change]) -> list[Change]:
    """The most significant statistic of one tensor."""
    best: dict[str, Change] = {}
    for change in changes:
        known = best.get(change.target)
        if known is None or change.score > known.score:
            best[change.target] = change
    return list(best.values())


def _together(changes: list[Change], num_targets: int) -> list[Change]:
    """If most targets of a quantity changed in the same way, merge them into the strongest one."""
    alike: dict[tuple[str, bool], list[Change]] = {}
    for change in changes:
        alike.setdefault((change.kind, change.after > change.before), []).append(change)
    found: list[Change] = []
    for group in alike.values():
        if len(group) >= FEWEST_IN_COMMON and len(group) > COMMON_SHARE * num_targets:
            most = max(group, key=lambda change: change.score)
            found.append(dataclasses.replace(most, num_alike=len(group)))
        else:
            found += group
    return found


def _grouped(changes: Iterable[Change]) -> Iterator[Change]:
    """Merge duplicates: series with the same numbers, and one tensor at different points of a step."""
    groups: dict[object, list[Change]] = {}
    for change in changes:
        numbers = change.values.tobytes()
        family = FAMILIES.get(change.quantity, change.quantity)
        tensor = (family, change.target, change.kind, change.after > change.before)
        group = groups.get(numbers) or groups.get(tensor) or []
        group.append(change)
        groups[numbers] = groups[tensor] = group
    for group in {id(group): group for group in groups.values()}.values():
        # Keep the first in the order of observation; the others follow from it.
        shown = group[0]
        others = tuple(dict.fromkeys(f"{other.quantity} of {other.target}" for other in group[1:]))
        yield dataclasses.replace(shown, score=max(other.score for other in group), same=others)
