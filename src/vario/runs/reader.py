"""Reads a run's files: series, frames, tables and state, live or later."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vario.core.errors import ConfigError, MissingExtra
from vario.core.merged_parts import joined_spans
from vario.core.process import ending
from vario.core.records import COLUMNS, HELD, Collective, Structure, merge
from vario.core.selector import pattern_matcher
from vario.core.text import unknown
from vario.rules.api.masks import are_masks
from vario.runs.files import sql, status
from vario.runs.files.arrays import numbers, take
from vario.runs.files.budget import SUMMARY_BYTES, Budget
from vario.runs.files.folder import RunFolder
from vario.runs.files.layout import Layout, first_of_each_step, of_replicas
from vario.runs.files.listing_cache import listings_cached
from vario.runs.files.merged_parts import thinned_text
from vario.runs.files.rank_json import read_collectives, read_structure
from vario.runs.files.rollups import settled
from vario.runs.files.row_files import EVERYTHING
from vario.runs.files.status import RankState
from vario.runs.files.store_reader import QuantityReader, quantities, summaries
from vario.runs.files.tables import all_columns, in_order, merge_ranks, together
from vario.runs.files.unmerged import LeftOut, differing, unmerged_of
from vario.statistics import STATISTICS

Rank = int | Literal["all"]
"""One rank, or all of them merged: shards of a parameter add up to the whole, and replicas count once."""

SIDED = ("activation", "activation_gradient")


@dataclass(frozen=True)
class Series:
    """One statistic of one target over steps."""

    target: str
    quantity: str
    statistic: str
    rank: Rank
    steps: npt.NDArray[np.int64]
    micro_steps: npt.NDArray[np.int32]
    """All 0 if micro-steps were merged."""
    values: npt.NDArray[np.float64]
    note: str = ""
    """What these values omit of the target, as text."""
    thinned: tuple[tuple[int, int], ...] = ()
    """First and last step of each range in which only few of the recorded steps are left."""

    def __len__(self) -> int:
        return len(self.steps)


class RunReader(RunFolder):
    """One run folder. Whatever can change while the run is written is read again on each access."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._readers: dict[tuple[int, str], QuantityReader] = {}
        self._left_out = LeftOut(path)
        self._layout_read: tuple[tuple[int, ...], Layout] | None = None

    @property
    def last_step(self) -> int | None:
        """The newest step any rank has recorded."""
        steps = [step for rank in self.ranks for step in self.steps("scalar", rank)[-1:]]
        noted = [content["last_step"] for content in self._present() if content.get("last_step") is not None]
        return max((int(step) for step in [*steps, *noted]), default=None)

    @property
    def rank_states(self) -> list[RankState]:
        """The state and host of each rank, for example which one failed first."""
        sessions = self.sessions
        return [self._with_rows(found, sessions) for found in self.noted_rank_states]

    def _with_rows(self, found: RankState, sessions: list[dict[str, Any]]) -> RankState:
        # A rank that ended cleanly has recorded its last step; the file of any other is as old as its last update.
        if found.state in ending.OVER and found.last_step is not None:
            return found
        newest = self.reader(found.rank, "scalar").newest_step(sessions)
        return found if newest is None else dataclasses.replace(found, last_step=newest)

    def steps(self, quantity: str = "scalar", rank: Rank = 0) -> npt.NDArray[np.int64]:
        """Return the steps at which a quantity was recorded, in order."""
        if rank == "all":
            found = np.zeros(0, np.int64)
            for number in self.ranks:
                found = np.union1d(found, self.steps(quantity, number))
            return found
        if quantity not in self.quantities(rank):
            return np.zeros(0, np.int64)
        return self.reader(rank, quantity).steps(self.sessions)

    def structure(self, rank: int = 0) -> Structure:
        """Return modules and parameters in model order, and which part of them this rank has."""
        self.check_rank(rank)
        return read_structure(self.path / f"rank{rank}")

    def collectives(self, rank: int = 0) -> list[Collective]:
        """Return the targets of `communication`: operation, group, dtype, call stack, in the order of their first
        call."""
        self.check_rank(rank)
        return read_collectives(self.path / f"rank{rank}")

    def quantities(self, rank: Rank = 0) -> list[str]:
        """The recorded quantities, in the config's order; plain numbers last."""
        known = list(self.config.get("quantities", ()))
        found = {name for number in self._ranks(rank) for name in quantities(self.path / f"rank{number}")}
        return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))

    @listings_cached()
    def targets(self, quantity: str | None = None, pattern: str | None = None, rank: Rank = "all") -> list[str]:
        """Return names in the order of their first observation, all or those that match a name, glob or `re:`
        expression."""
        seen: dict[str, tuple[int, int]] = {}
        if quantity is not None and quantity not in self.quantities(rank):
            if rank != "all" and quantity in HELD and quantity in self.quantities("all"):
                # Other ranks with the same tensors recorded them.
                return [
                    name
                    for name in self.targets(quantity, pattern)
                    if any(quantity in self.quantities(other) for other in self.layout.alike(name, rank))
                ]
            raise ConfigError(unknown("quantity", quantity, self.quantities(rank)))
        for number in self._ranks(rank):
            recorded = self.quantities(number)
            for name in [quantity] if quantity in recorded else [] if quantity else recorded:
                for target, when in self.reader(number, name).first_seen(self.sessions).items():
                    seen[target] = min(when, seen.get(target, when))
        names = sorted(seen, key=lambda name: seen[name])
        if pattern is None:
            return names
        expression = pattern_matcher(pattern)
        return [name for name in names if name == pattern or expression.fullmatch(name)]

    @listings_cached()
    def series(
        self, target: str, quantity: str, statistic: str = "", rank: Rank = "all", micro_steps: bool = False
    ) -> Series:
        """Return one statistic of one target over steps; micro-steps are merged into one point by default.

        Over all ranks a sharded parameter is whole again, and a replicated one counts once. For one rank, a replicated
        tensor that another rank recorded is read from there.
        """
        if quantity == "scalar":
            return self._scalar_series(target, statistic or "value", rank)
        derived = STATISTICS.get(statistic or self.usual_statistic, "statistic")
        self.check_recorded(derived.needs, derived.name)
        columns = ["step", "micro_step", *(name for name in COLUMNS if name in derived.needs)]
        target, tables = self.stored_rows(target, quantity, columns, rank)
        steps = np.concatenate([numbers(table.column("step")) for table in tables])
        micro = np.concatenate([numbers(table.column("micro_step")) for table in tables])
        rows = np.concatenate([summaries(table) for table in tables])
        if not micro_steps:
            micro = np.zeros_like(micro)
        points, groups = np.unique(np.stack([steps, micro], axis=1), axis=0, return_inverse=True)
        merged = merge(rows, groups.reshape(-1), len(points))
        note = self._left_out.note(unmerged_of(self, quantity, target)) if rank == "all" and len(self.ranks) > 1 else ""
        values = derived(merged)
        thinned = self.thinned(quantity, rank)
        if thinned and len(tables) > 1:
            # Where a rank has dropped its share, a sum over the others would be no value of the whole.
            keep = ~self._lacks(quantity, points[:, 0]) | ~np.isfinite(values)
            points, values = points[keep], values[keep]
        note = " ".join(filter(None, (note, thinned_text(quantity, thinned))))
        return Series(
            target,
            quantity,
            derived.name,
            rank,
            points[:, 0],
            points[:, 1].astype(np.int32),
            values,
            note,
            tuple(thinned),
        )

    def thinned(self, quantity: str, rank: Rank = "all") -> list[tuple[int, int]]:
        """Return first and last step of each range in which rows were dropped as they grew old, on any rank."""
        having = [number for number in self._ranks(rank) if quantity in self.quantities(number)]
        sessions = self.sessions
        return list(joined_spans([span for n in having for span in self.reader(n, quantity).thinned(sessions)]))

    def _lacks(self, quantity: str, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return at which steps some rank has dropped rows."""
        found = np.zeros(len(steps), np.bool_)
        for number in self.ranks:
            if quantity in self.quantities(number):
                found |= self.reader(number, quantity).lacks(self.sessions, steps)
        return found

    @listings_cached()
    def frame(self, step: int, quantity: str | None = None, rank: Rank = 0) -> Any:
        """Return all rows at one step as a pyarrow Table, in the order of observation: of one quantity, or of all.

        For all quantities there is a column `quantity`, and plain numbers are not included. Over all ranks each target
        has one row per micro-step, merged as in `series`.
        """
        if rank == "all":
            if quantity is None or quantity == "scalar":
                raise ConfigError("quantity: required when merging over ranks. For plain numbers use `series`.")
            sessions, recorded = self.sessions, self.ranks
            having = [number for number in recorded if quantity in self.quantities(number)]
            columns = all_columns(quantity)
            budget = Budget()
            read = {
                number: self.reader(number, quantity).read(columns, sessions, step=step, budget=budget)
                for number in having
            }
            if len(having) > 1 and self._lacks(quantity, np.array([step], np.int64))[0]:
                raise ConfigError(f"step: rows of {quantity} at step {step} were dropped on some rank. Name one rank.")
            tables = {number: in_order(table) for number, table in read.items() if table.num_rows}
            if len(tables) < 2:
                return self.frame(step, quantity, next(iter([*tables, *having, *recorded])))
            if quantity in HELD and self.layout.has_strangers:
                self._left_out.note(differing(self, quantity, tables))
            return merge_ranks(tables, self.layout.counted if quantity in HELD else None)
        if quantity is None:
            found = [name for name in self._tensor_quantities(rank) if step in self.steps(name, rank)]
            if not found:
                raise ConfigError(f"step: no tensor was recorded at step {step}")
            return together({name: self.frame(step, name, rank) for name in found})
        reader = self._checked_reader(rank, quantity)
        table = reader.read(all_columns(quantity), self.sessions, step=step)
        if not table.num_rows:
            steps = self.steps(quantity, rank)
            near = f"The nearest is {steps[np.abs(steps - step).argmin()]}." if len(steps) else "Nothing recorded yet."
            raise ConfigError(f"step: {quantity} was not recorded at step {step}. {near}")
        return in_order(table)

    def to_arrow(self, quantity: str | None = None, rank: int = 0) -> Any:
        """Return all rows as a pyarrow Table, in the order of observation: of one quantity, or of all as in `frame`."""
        budget = Budget()
        if quantity is None:
            return together({name: self.all_rows(name, rank, budget) for name in self._tensor_quantities(rank)})
        return self.all_rows(quantity, rank, budget)

    def all_rows(self, quantity: str, rank: int, budget: Budget, more: Sequence[str] = ()) -> Any:
        """Like `to_arrow`, with `more` columns, as part of a result whose rows share a budget."""
        reader = self._checked_reader(rank, quantity)
        return in_order(reader.read([*all_columns(quantity), *more], self.sessions, budget=budget))

    def batches(self, quantity: str, rank: int = 0) -> Iterator[Any]:
        """Yield all rows as pyarrow Tables, one per file, oldest first: a run of any size in little memory."""
        yield from map(in_order, self._checked_reader(rank, quantity).batches(all_columns(quantity), self.sessions))

    def to_pandas(self, quantity: str | None = None, rank: int = 0) -> Any:
        """Return all rows as a pandas DataFrame: of one quantity, or of all as in `frame`."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingExtra("to_pandas", "pandas") from None
        return self.to_arrow(quantity, rank).to_pandas()

    @listings_cached()
    def sql(self, query: str) -> Any:
        """Run a SQL query over all ranks and return a pyarrow Table.

        Each quantity is a view, and so are `params` and `distribution`, which has a row for each bin with elements.
        """
        readers = {
            quantity: [(rank, self.reader(rank, quantity)) for rank in self.ranks if quantity in self.quantities(rank)]
            for quantity in dict.fromkeys(name for rank in self.ranks for name in self.quantities(rank))
        }
        return sql.ask(query, readers, self.sessions, self.params)

    def columns(
        self,
        quantity: str,
        names: Sequence[str],
        rank: int,
        first: int | None = None,
        budget: Budget | None = None,
    ) -> Any:
        """Return selected columns of a quantity's rows, all or from a step on, as an unordered pyarrow Table."""
        return self._checked_reader(rank, quantity).read(names, self.sessions, first=first, budget=budget)

    def bad_rows(self, quantity: str, rank: int) -> Any:
        """Return the non-finite rows, without masks, of the first part that has any; None if all are finite."""
        return settled(lambda: self._first_bad_rows(quantity, rank))

    def _first_bad_rows(self, quantity: str, rank: int) -> Any:
        columns = ["step", "micro_step", "order", "target", *COLUMNS]
        for row_file, limit in self._checked_reader(rank, quantity).suspects(self.sessions):
            if quantity == "scalar":
                table = row_file.read(["step", "target", "value"], EVERYTHING.at_most(limit))
                table = take(table, np.flatnonzero(~np.isfinite(numbers(table.column("value")))))
            else:
                table = row_file.bad_rows(columns, limit)
                if quantity == "activation" and table.num_rows:
                    is_mask = are_masks(table.column("target").to_pylist(), summaries(table))
                    table = take(table, np.flatnonzero(~is_mask))
            if table.num_rows:
                return table
        return None

    def _scalar_series(self, target: str, statistic: str, rank: Rank) -> Series:
        if statistic != "value":
            raise ConfigError(unknown("statistic", statistic, ["value"]))
        target, tables = self.stored_rows(target, "scalar", ["step", "value"], rank)
        steps = np.concatenate([numbers(table.column("step")) for table in tables])
        values = np.concatenate([numbers(table.column("value")) for table in tables])
        points, groups = np.unique(steps, return_inverse=True)
        with np.errstate(invalid="ignore"):
            # Plain numbers do not merge like Summaries: over ranks they are averaged.
            values = np.bincount(groups, values, len(points)) / np.bincount(groups, minlength=len(points))
        thinned = self.thinned("scalar", rank)
        micro = np.zeros(len(points), np.int32)
        note = thinned_text("scalar", thinned)
        return Series(target, "scalar", "value", rank, points, micro, values, note, tuple(thinned))

    @listings_cached()
    def stored_rows(self, target: str, quantity: str, columns: list[str], rank: Rank) -> tuple[str, list[Any]]:
        """Return a target's name, and some columns of the rows that make it up, a table per part."""
        names = [target, f"{target}:output"] if quantity in SIDED and ":" not in target else [target]
        sessions = self.sessions
        for name in names:
            budget = Budget(SUMMARY_BYTES)
            tables = [
                table
                for alike in self._groups(name, quantity, rank)
                for table in first_of_each_step(
                    of_replicas(
                        [self.reader(number, quantity) for number in alike if quantity in self.quantities(number)],
                        sessions,
                        partial(QuantityReader.read, columns=columns, sessions=sessions, target=name, budget=budget),
                    )
                )
            ]
            if tables:
                return name, tables
        if quantity not in self.quantities("all"):
            raise ConfigError(unknown("quantity", quantity, self.quantities(rank)))
        known = self.targets(quantity)
        if rank != "all" and (found := [name for name in names if name in known]):
            having = [other for other in self.ranks if other != rank and found[0] in self._seen_by(other, quantity)]
            raise ConfigError(
                f"rank: {rank} has no {quantity} of '{target}'. Ranks that have it: {', '.join(map(str, having))}."
            )
        raise ConfigError(unknown("target", target, known))

    def _seen_by(self, rank: int, quantity: str) -> Collection[str]:
        return self.reader(rank, quantity).first_seen(self.sessions)

    def _groups(self, target: str, quantity: str, rank: Rank) -> list[list[int]]:
        """The ranks whose rows make up a target: ranks of one group are replicas, groups add up."""
        recorded = self.ranks
        if rank != "all":
            self.check_rank(rank)
            alike = self.layout.alike(target, rank) if quantity in HELD else [rank]
            return [[rank, *(other for other in alike if other in recorded and other != rank)]]
        held = self.layout.holders(target) if quantity in HELD and len(recorded) > 1 else []
        shown = [[n for n in alike if n in recorded and self.layout.counted(target, n) != -1] for alike in held]
        return shown or [[n] for n in recorded]

    @property
    def layout(self) -> Layout:
        """Which rank has which part of each parameter."""
        ranks = tuple(self.ranks)
        if self._layout_read is None or self._layout_read[0] != ranks:
            self._layout_read = ranks, Layout(ranks, self.structure)
        return self._layout_read[1]

    def _ranks(self, rank: Rank) -> list[int]:
        if rank == "all":
            return self.ranks
        self.check_rank(rank)
        return [rank]

    def check_rank(self, rank: int) -> None:
        """Raise ConfigError for a rank that recorded nothing."""
        if not status.has_rank(self.path, rank):
            raise ConfigError(f"rank: {rank!r} recorded nothing. Known: {', '.join(map(str, self.ranks)) or 'none'}.")

    def _tensor_quantities(self, rank: int) -> list[str]:
        return [name for name in self.quantities(rank) if name != "scalar"]

    def _checked_reader(self, rank: int, quantity: str) -> QuantityReader:
        if quantity not in self.quantities(rank):
            raise ConfigError(unknown("quantity", quantity, self.quantities(rank)))
        return self.reader(rank, quantity)

    def reader(self, rank: int, quantity: str) -> QuantityReader:
        """Return the cached reader of one quantity of one rank."""
        key = (rank, quantity)
        if key not in self._readers:
            self._readers[key] = QuantityReader(self.path / f"rank{rank}", quantity)
        return self._readers[key]
