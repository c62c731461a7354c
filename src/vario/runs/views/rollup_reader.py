"""One rank's rollups, and the rows that none of them stands for, as numbers with a lowest and a highest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.runs.files.arrays import numbers, place_of
from vario.runs.files.rollups import RollupFile
from vario.runs.views.heat_table import HeatTable, distinct
from vario.runs.views.merged_series import Flags, Points, Steps, Values
from vario.runs.views.read_plan import View
from vario.runs.views.view_source import Source


@dataclass(frozen=True)
class Block:
    """Rows of a rollup in the order of (target, step)."""

    names: Any
    """The names, as an Arrow array."""
    codes: Steps
    last_step: Steps
    low: Values
    high: Values
    last: Values
    bad: Flags
    count: Values | None
    """The number of elements of the tensors; None if there is nothing to weight them against."""


class RankRollups:
    """What one rank has, by rollups up to a level."""

    def __init__(self, source: Source, view: View, level: int) -> None:
        self.plan = view.plan(level, source.wanted)
        self.points: list[Points] = list(source.points_of(view.rank, self.plan.row_files))
        """The rows that no rollup stands for."""
        self._source = source

    def raw_steps(self) -> Steps:
        """The steps of the rows that no rollup stands for."""
        return distinct(np.concatenate([np.zeros(0, np.int64), *(distinct(one.steps) for one in self.points)]))

    def blocks(self, is_whole: bool) -> Iterator[Block]:
        """The rows of the rollups; without lowest and last value, where a picture needs neither, if not whole."""
        for file in self.plan.files:
            yield self._read(file, is_whole)

    def add_to(self, table: HeatTable, places: Mapping[str, int]) -> None:
        """Add all numbers to a table with these rows."""
        names, rows = None, np.zeros(0, np.int64)
        for block in self.blocks(is_whole=False):
            if names is None or not block.names.equals(names):
                names = block.names
                rows = np.array([places.get(name, -1) for name in names.to_pylist()], np.int64)
            table.add(rows, block.codes, block.last_step, block.low, block.high, block.bad)
            if block.count is not None:
                table.weigh(rows, block.codes, block.count)
        for points in self.points:
            rows = np.array([places.get(name, -1) for name in points.names], np.int64)
            values = np.where(np.isfinite(points.values), points.values, np.nan)
            table.add(rows, points.codes, points.steps, values, values, points.bad)
            table.weigh(rows, points.codes, points.counts)

    def _read(self, file: RollupFile, is_whole: bool) -> Block:
        statistic, wanted = self._source.statistic, self._source.wanted
        low, high, last = (f"{statistic}_{which}" for which in ("low", "high", "last"))
        columns = ["target", "last_step", high, *(["bad"] if file.may_be_bad else [])]
        if is_whole or self._source.is_signed:
            columns.append(low)
        if is_whole:
            columns.append(last)
        if len(self._source.views) > 1:
            columns.append("count_high")
        cut_left = wanted.first is not None and file.span[0] < wanted.first
        cut_right = wanted.last is not None and file.span[1] > wanted.last
        if cut_left or cut_right:
            columns.append("first_step")
        table = file.read(list(dict.fromkeys(columns)), wanted.target).unify_dictionaries().combine_chunks()
        target = table.column("target").combine_chunks()
        codes = numbers(target.indices)
        read = {name: numbers(table.column(name)) for name in table.column_names if name != "target"}
        keep = np.ones(len(codes), np.bool_)
        if wanted.target is not None:
            keep &= codes == place_of(wanted.target, target.dictionary)
        if cut_left:
            keep &= read["last_step"] >= wanted.first
        if cut_right:
            keep &= read["first_step"] <= wanted.last
        if not keep.all():
            codes, read = codes[keep], {name: values[keep] for name, values in read.items()}
        return Block(
            target.dictionary,
            codes,
            read["last_step"],
            read.get(low, read[high]),
            read[high],
            read.get(last, read[high]),
            read["bad"] > 0 if "bad" in read else np.zeros(len(codes), np.bool_),
            read.get("count_high"),
        )
