"""From the records of a step to the step that rules see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from vario.core.records import COLUMNS, Frame, StepRecord
from vario.rules.api.series_state import Memory
from vario.rules.api.step_view import Facts, Step


class StepAssembler:
    """Collects the records of a step, which is complete when the next one begins."""

    def __init__(self, facts: Facts, memory: Memory) -> None:
        self._facts = facts
        self._memory = memory
        self._missing = [at for at, name in enumerate(COLUMNS) if name not in facts.columns]
        self._waiting: list[StepRecord] = []

    def add(self, record: StepRecord) -> Iterator[Step]:
        """Add a record; yield the previous step if this completes it."""
        if self._waiting and record.step != self._waiting[-1].step:
            yield from self.flush()
        self._waiting.append(record)

    def flush(self) -> Iterator[Step]:
        """Yield the step in progress, with the records so far."""
        records, self._waiting = self._waiting, []
        if records:
            number = records[-1].step
            # Late frames of an asynchronous collective belong to a step that was already checked.
            frames = [frame for record in records for frame in record.frames if frame.step == number]
            scalars: dict[str, float] = {}
            for record in records:
                scalars.update(record.scalars.values)
            yield Step(
                number, records[-1].scalars.time, scalars, list(self._blanked(frames)), self._facts, self._memory
            )

    def _blanked(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """Set columns that were not requested to NaN: their content is undefined."""
        for frame in frames:
            if self._missing:
                summaries = frame.summaries.copy()
                summaries[:, self._missing] = np.nan
                frame = Frame(frame.quantity, frame.step, frame.micro_step, frame.targets, frame.order, summaries)
            yield frame
