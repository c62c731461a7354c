"""Write one part from several: with all their rows, or with those that stay when a run grows old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.merged_parts import MergedPart, Span, joined_spans
from vario.core.process.at_work import let_forks_pass
from vario.core.run_files.parquet import read_footer, read_groups
from vario.store.encoding import whole_array
from vario.store.part_list import PartList
from vario.store.recovery import PART_DEPTH
from vario.store.rollup_files import every_step, progressions
from vario.store.rollup_rows import numbers
from vario.store.sorted_file import SortedFile
from vario.store.sorting import ROWS_PER_GROUP, in_target_order

MOST_ROWS = 1 << 19
"""Rows of a merged part: as many as are sorted in little memory, and half of what readers accept."""
ONSET_STEPS = 5
"""Steps kept before and after the first NaN or Inf of a tensor."""
MOST_ONSETS = 16
"""Tensors that come and go by design, such as masks, are not kept around for."""

Steps = npt.NDArray[np.int64]
Part = tuple[int, int, str]
"""First and last number, and name."""


class Keeper:
    """Decides which steps stay in full."""

    def __init__(self, windows: Iterable[Span], every: int, before: int | None = None) -> None:
        """`windows`: first and last step of each range to keep; `before`: the last step that was kept."""
        self._windows = joined_spans(list(windows))
        self._every = every
        self._regular = before

    def add(self, windows: Iterable[Span]) -> None:
        """Keep more ranges."""
        self._windows = joined_spans([*self._windows, *windows])

    def whole(self, steps: Steps) -> Steps:
        """Return those of these increasing steps that stay; calls come in the order of steps."""
        keep = np.zeros(len(steps), np.bool_)
        for first, last in self._windows:
            keep[np.searchsorted(steps, first, "left") : np.searchsorted(steps, last, "right")] = True
        for at, step in enumerate(steps.tolist()):
            # A step may begin in one part and end in the next.
            if self._regular is None or step // self._every > self._regular // self._every or step == self._regular:
                self._regular = step
                keep[at] = True
        return steps[keep]


class Source:
    """One part to be rewritten, without what later sessions discarded."""

    def __init__(self, folder: Path, part: Part, known: MergedPart | None, cuts: Mapping[int, int]) -> None:
        self.path = folder / part[2]
        self.first, self.last = part[:2]
        self.known = known
        self.footer: Any = read_footer(self.path, PART_DEPTH)
        self.session = int((self.footer.metadata or {}).get(b"vario.session", b"0"))
        self._cut = min((step for session, step in cuts.items() if session > self.session), default=None)
        self.has_value = "value" in self.footer.schema.names

    def steps(self) -> Steps:
        """Return the step of each row."""
        if not self.footer.num_rows:
            return np.zeros(0, np.int64)
        return whole_array(self._read(["step"]).column("step").combine_chunks(), np.int64)

    def shown(self, steps: Steps) -> npt.NDArray[np.bool_]:
        """Whether rows of these steps were not discarded."""
        return np.ones(len(steps), np.bool_) if self._cut is None else steps < self._cut

    def bad(self) -> npt.NDArray[np.bool_] | None:
        """Whether each row has a NaN or Inf; None if none has, as the footer often tells."""
        if not self.footer.num_rows:
            return None
        if self.has_value:
            found = ~np.isfinite(numbers(self._read(["value"]).column("value").combine_chunks()))
        elif self._may_be_bad():
            table = self._read(["nans", "infs"])
            found = np.logical_or(*(numbers(table.column(name).combine_chunks()) > 0 for name in ("nans", "infs")))
        else:
            return None
        return found if found.any() else None

    def onsets(self, bad: npt.NDArray[np.bool_], steps: Steps, before: Set[str]) -> tuple[Steps, Set[str]]:
        """Return the steps at which a target that was good turns bad, and the targets that are bad at the end.

        `before`: those that were bad at the end of the part before.
        """
        target = self._read(["target"]).unify_dictionaries().column("target").combine_chunks()
        codes = whole_array(target.indices, np.int32)
        names = target.dictionary.to_pylist()
        starts = np.append(True, codes[1:] != codes[:-1])
        ends = np.append(starts[1:], True)
        was_good = ~np.append(False, bad[:-1])
        was_good[starts] = [names[code] not in before for code in codes[starts].tolist()]
        return np.unique(steps[bad & was_good]), {names[code] for code in codes[ends & bad].tolist()}

    def rows(self, keep: npt.NDArray[np.bool_]) -> Any:
        """Return the chosen rows."""
        table = self._read(self.footer.schema.names)
        return table if keep.all() else table.filter(_mask(keep))

    def _may_be_bad(self) -> bool:
        places = [self.footer.schema.names.index(name) for name in ("nans", "infs")]
        groups = [self.footer.row_group(index) for index in range(self.footer.num_row_groups)]
        known = [group.column(place).statistics for group in groups for place in places]
        return any(found is None or not found.has_min_max or found.max > 0 for found in known)

    def _read(self, columns: Sequence[str]) -> Any:
        return read_groups(self.path, PART_DEPTH, self.footer, range(self.footer.num_row_groups), columns)


def merge(parts: PartList, chosen: Sequence[Part], cuts: Mapping[int, int]) -> MergedPart:
    """Write one part with all rows of several, thinned ones or others."""
    sources = [Source(parts.folder, part, parts.merged(part[2]), cuts) for part in chosen]
    tables = []
    for source in sources:
        if (keep := source.shown(source.steps())).any():
            tables.append(source.rows(keep))
        let_forks_pass()
    known = [source.known for source in sources if source.known is not None and source.known.thinned]
    if len(known) not in (0, len(sources)):
        raise ValueError("thinned parts are merged among themselves")
    thinned = joined_spans([span for one in known for span in one.thinned], steps_between=True)
    return _write(parts, sources, tables, thinned, [every_step(one.whole) for one in known])


def thin(parts: PartList, chosen: Sequence[Part], cuts: Mapping[int, int], keeper: Keeper) -> Iterator[MergedPart]:
    """Write parts with the rows of several that stay, each in the place of two parts or more."""
    sources = [Source(parts.folder, part, parts.merged(part[2]), cuts) for part in chosen]
    keeper.add(_around_onsets(sources))
    waiting: list[Source] = []
    tables: list[Any] = []
    spans: list[Span] = []
    whole: list[Steps] = []
    for place, source in enumerate(sources):
        steps = source.steps()
        shown = source.shown(steps)
        bad = source.bad()
        found = np.unique(steps[shown])
        kept = keeper.whole(found)
        keep = np.isin(steps, kept) & shown
        if bad is not None:
            keep |= bad & shown
        waiting.append(source)
        whole.append(kept)
        if len(found):
            spans.append((int(found[0]), int(found[-1])))
        if keep.any():
            tables.append(source.rows(keep))
        let_forks_pass()
        is_enough = sum(table.num_rows for table in tables) > MOST_ROWS
        # A file never takes the name of another one, so what is known of a name stays true.
        if place == len(sources) - 1 or (is_enough and len(waiting) > 1 and place < len(sources) - 2):
            thinned = joined_spans(spans, steps_between=True)
            yield _write(parts, waiting, tables, thinned, whole)
            waiting, tables, spans, whole = [], [], [], []


def _around_onsets(sources: Sequence[Source]) -> list[Span]:
    onsets = []
    before: Set[str] = frozenset()
    for source in sources:
        if (bad := source.bad()) is None:
            before = frozenset()
            continue
        steps, before = source.onsets(bad, source.steps(), before)
        onsets.append(steps)
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *onsets])).tolist()
    return [(step - ONSET_STEPS, step + ONSET_STEPS) for step in found] if len(found) <= MOST_ONSETS else []


def _write(
    parts: PartList, sources: Sequence[Source], tables: Sequence[Any], thinned: Sequence[Span], whole: Sequence[Steps]
) -> MergedPart:
    # A part without rows keeps the place of those that had some.
    tables = tables or [sources[-1].rows(np.zeros(sources[-1].footer.num_rows, np.bool_))]
    plain = [table.replace_schema_metadata(None) for table in tables]
    table: Any = pa.concat_tables(plain, promote_options="default")
    steps = np.zeros(0, np.int64)
    if table.num_rows:
        table = in_target_order(table)
        steps = whole_array(table.column("step").combine_chunks(), np.int64)
    spans = [*thinned, *([(int(steps.min()), int(steps.max()))] if len(steps) else [])]
    told = MergedPart(
        sources[0].first,
        sources[-1].last,
        max(source.session for source in sources),
        (min((first for first, _ in spans), default=0), max((last for _, last in spans), default=0)),
        int(table.num_rows),
        tuple(thinned),
        progressions(np.unique(np.concatenate([np.zeros(0, np.int64), *whole]))) if thinned else (),
    )
    table = table.replace_schema_metadata(told.metadata())
    file = SortedFile(parts.folder / told.name, table.schema, ROWS_PER_GROUP)
    try:
        file.write(table)
        file.finish()
    except BaseException:
        file.discard()
        raise
    parts.add(told)
    return told


def _mask(keep: npt.NDArray[np.bool_]) -> Any:
    packed = np.packbits(keep, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(keep), [None, pa.py_buffer(packed.data)])
