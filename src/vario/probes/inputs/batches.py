"""Whether batches repeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.events import Inputs
from vario.backends.protocols.gradients import Gradients
from vario.backends.protocols.observing import RowHashes
from vario.probes import Needs, Recorder
from vario.probes.inputs.batch_row_history import BatchRowHistory

STUCK = 8
"""Steps in a row whose batches all contain a row before it counts as stuck."""
HABIT = 6
"""How many of as many batches have a row twice if rows are made, by a policy that is ever more sure, and not loaded:
those do not count as repeated."""
_FEW = 0.1
"""The largest share of the known rows that a batch may be: with fewer rows some come again and again by chance."""
_LARGEST = 1 << 53
"""Integers below this are exact as floats."""


class Batches:
    """`batch_repeated`, `batch_distance` and `batch_checksum`: which rows of a step's batches were seen before.

    `batch_stuck`: the share of rows that were in each of the last eight steps; logged if there are any.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (offered.Batches,)

    def __init__(self) -> None:
        self._seen = BatchRowHistory()
        self._recurring = _Recurring()
        self._with_twins: deque[bool] = deque(maxlen=STUCK)
        """Whether each of the latest batches had a row twice."""
        self._of_step: list[Callable[[], RowHashes]] = []
        self._num_used = 0
        """How many of these a backward pass has used."""
        self._of_pass: Callable[[], RowHashes] | None = None
        self._root: str | None = None
        """The outermost module that is called with batches: chunks of a pipeline are called with the same batch."""
        self._is_shown = False
        """Whether the loop passes its batches to `monitor.batch`."""
        self._is_updating = False
        self._may_look = True

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the inputs of the outermost module, or to batches passed to `monitor.batch`."""
        self._contents = needed(backend, offered.Batches)
        self._recorder = recorder
        backend.on_pass_began(recorder.guarded("batches", self._pass_began))
        backend.on_pass_ended(recorder.guarded("batches", self._pass_ended))
        backend.on_backward_ended(recorder.guarded("batches", self._backward_ended))
        backend.on_backward_failed(recorder.guarded("batches", self._backward_failed))
        backend.on_batch(recorder.guarded("batches", self._shown))
        backend.on_update_called(recorder.guarded("batches", self._update_called))
        backend.on_update_ended(recorder.guarded("batches", self._update_ended))
        recorder.on_step_ended(recorder.guarded("batches", self._step_ended))

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        if self._root not in (None, root):
            return
        self._of_pass = None
        if not self._is_shown and self._may_look:
            self._of_pass = self._contents.row_hashes(inputs)
            if self._of_pass is not None:
                self._root = root

    def _pass_ended(self, output: Any) -> None:
        # Not earlier: a pass that raised may be repeated.
        if self._of_pass is not None:
            self._of_step.append(self._of_pass)
            self._of_pass = None
            # A closure is called as often as its optimizer likes, with the same batch.
            self._may_look = not self._is_updating

    def _backward_ended(self, gradients: Gradients) -> None:
        self._num_used = len(self._of_step)

    def _backward_failed(self) -> None:
        # These batches may be repeated, too.
        del self._of_step[self._num_used :]

    def _update_called(self, optimizer: Any) -> None:
        self._is_updating = True

    def _update_ended(self, optimizer: Any) -> None:
        self._is_updating, self._may_look = False, True

    def _shown(self, batch: Any) -> None:
        if not self._is_shown:
            self._is_shown = True
            self._of_step = []
        fetch = self._contents.row_hashes(batch)
        if fetch is not None:
            self._of_step.append(fetch)

    def _step_ended(self, seconds: float) -> None:
        fetches, self._of_step, self._num_used = self._of_step, [], 0
        if fetches:
            fill = partial(self._fill, fetches)
            self._recorder.frames.log_when(self._recorder.guarded("batches", fill))

    def _fill(self, fetches: list[Callable[[], RowHashes]], scalars: dict[str, float]) -> None:
        """Fill in the numbers, on the writer thread."""
        passes = [fetch() for fetch in fetches]
        hashes = np.concatenate(passes)
        # One batch may go through the model several times before an update: with moved weights (SAM), with different
        # dropout, in adversarial training. Rows of an earlier pass of this step do not count again.
        new = [
            rows[~np.isin(rows, np.concatenate(passes[:number]))] if number else rows
            for number, rows in enumerate(passes)
        ]
        counted = np.concatenate(new)
        rows, times = np.unique(counted, return_counts=True)
        is_twice = np.isin(counted, rows[times > 1]) & (sum(self._with_twins) >= HABIT)
        self._with_twins.append(bool((times > 1).any()))
        distances = self._seen.add(counted[~is_twice])
        scalars["batch_repeated"] = len(distances) / len(counted)
        self._seen.add(counted[is_twice])
        if distances:
            scalars["batch_distance"] = float(np.median(distances))
        num_stuck = self._recurring.add(hashes, bool(distances) or bool(is_twice.any()))
        if num_stuck and not is_twice.any() and len(hashes) <= _FEW * self._seen.num_rows:
            scalars["batch_stuck"] = num_stuck / len(hashes)
        scalars["batch_checksum"] = float(int(hashes.sum(dtype=np.uint64)) % _LARGEST)


class _Recurring:
    """Counts how many steps in a row each row has been in."""

    def __init__(self) -> None:
        self._rows: RowHashes = np.zeros(0, np.uint64)
        self._counts = np.zeros(0, np.int64)

    def add(self, hashes: RowHashes, may_recur: bool) -> int:
        """Add the rows of a step; return how many of them have been in each of the last steps."""
        if not may_recur:
            # The usual case: they are sorted when one of them comes again.
            self._rows, self._counts = hashes, np.zeros(0, np.int64)
            return 0
        if not len(self._counts):
            self._rows = np.unique(self._rows)
            self._counts = np.ones(len(self._rows), np.int64)
        rows, times = np.unique(hashes, return_counts=True)
        counts = np.ones(len(rows), np.int64)
        if len(self._rows):
            at = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
            counts += np.where(self._rows[at] == rows, self._counts[at], 0)
        self._rows, self._counts = rows, counts
        return int(times[counts >= STUCK].sum())
