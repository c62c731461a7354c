"""Whether batches come again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from vario.backends.base import Inputs, RowHashes, Watched
from vario.probes import Recorder
from vario.probes.seen_rows import SeenRows

_LARGEST = 1 << 53
"""Whole numbers below this are exact as floats."""


class Batches:
    """`batch_repeated`, `batch_distance` and `batch_checksum`: which rows of a step's batches were seen before."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def __init__(self) -> None:
        self._seen = SeenRows()
        self._of_step: list[Callable[[], RowHashes]] = []
        self._num_used = 0
        """How many of these a backward has gone through."""
        self._of_pass: Callable[[], RowHashes] | None = None
        self._root: str | None = None
        """The outermost module that is called with batches: chunks of a pipeline are called with the same one."""
        self._is_shown = False
        """Whether the loop shows its batches."""
        self._is_updating = False
        self._may_look = True

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to what the outermost module is called with, or to batches shown by `monitor.batch`."""
        self._watched = watched
        self._recorder = recorder
        watched.on_pass_began(recorder.guarded("batches", self._pass_began))
        watched.on_pass_ended(recorder.guarded("batches", self._pass_ended))
        watched.on_backward_ended(recorder.guarded("batches", self._backward_ended))
        watched.on_backward_failed(recorder.guarded("batches", self._backward_failed))
        watched.on_batch(recorder.guarded("batches", self._shown))
        watched.on_update_called(recorder.guarded("batches", self._update_called))
        watched.on_update_ended(recorder.guarded("batches", self._update_ended))
        recorder.on_step_ended(recorder.guarded("batches", self._step_ended))

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        if self._root not in (None, root):
            return
        self._of_pass = None
        if not self._is_shown and self._may_look:
            self._of_pass = self._watched.row_hashes(inputs)
            if self._of_pass is not None:
                self._root = root

    def _pass_ended(self, output: Any) -> None:
        # Not before: a pass that raised may be tried again.
        if self._of_pass is not None:
            self._of_step.append(self._of_pass)
            self._of_pass = None
            # A closure is called as often as its optimizer likes, with one and the same batch.
            self._may_look = not self._is_updating

    def _backward_ended(self) -> None:
        self._num_used = len(self._of_step)

    def _backward_failed(self) -> None:
        # These batches, too, may be tried again.
        del self._of_step[self._num_used :]

    def _update_called(self, optimizer: Any) -> None:
        self._is_updating = True

    def _update_ended(self, optimizer: Any) -> None:
        self._is_updating, self._may_look = False, True

    def _shown(self, batch: Any) -> None:
        if not self._is_shown:
            self._is_shown = True
            self._of_step = []
        fetch = self._watched.row_hashes(batch)
        if fetch is not None:
            self._of_step.append(fetch)

    def _step_ended(self, seconds: float) -> None:
        fetches, self._of_step, self._num_used = self._of_step, [], 0
        if fetches:
            fill = partial(self._fill, fetches)
            self._recorder.frames.log_when(self._recorder.guarded("batches", fill))

    def _fill(self, fetches: list[Callable[[], RowHashes]], scalars: dict[str, float]) -> None:
        """On the writer's thread."""
        passes = [fetch() for fetch in fetches]
        hashes = np.concatenate(passes)
        # One batch may go through the model several times before an update: with moved weights (SAM), with other
        # dropout, in adversarial training. What an earlier pass of this step had does not count again.
        new = [
            rows[~np.isin(rows, np.concatenate(passes[:number]))] if number else rows
            for number, rows in enumerate(passes)
        ]
        counted = np.concatenate(new)
        distances = self._seen.add(counted)
        scalars["batch_repeated"] = len(distances) / len(counted)
        if distances:
            scalars["batch_distance"] = float(np.median(distances))
        scalars["batch_checksum"] = float(int(hashes.sum(dtype=np.uint64)) % _LARGEST)
