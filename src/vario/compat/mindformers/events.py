"""The event file of one rank: `tensorboard_dir/rank_{id}`, shared by everything in this process that writes there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vario.compat.mindformers.settings import TensorBoardSettings
from vario.core.event_file import EventFile

TWINS = ("learning-rate", "batch-size", "loss", "loss-scale", "grad-norm", "iteration-time", "throughput")
"""Tags that are also drawn against samples."""
VS_SAMPLES = "-vs-samples"

_lock = threading.Lock()
_open: dict[Path, RankEvents] = {}


class RankEvents:
    """Appends to one event file, and flushes it whenever the queue is full."""

    def __init__(self, folder: Path, queue_size: int) -> None:
        self.folder = folder
        self.path: Path | None = None
        self._queue_size = queue_size
        self._file: EventFile | None = None
        self._num_waiting = 0
        self._lock = threading.Lock()
        self.num_users = 0

    def add(self, values: Mapping[str, float], step: int, now: float, num_samples: float | None = None) -> None:
        """Append the numbers of one step; with `num_samples`, the twins of some of them against samples."""
        if not values:
            return
        with self._lock:
            file = self._opened()
            file.add_scalars(tuple(values), list(values.values()), step, now)
            twins = {f"{tag}{VS_SAMPLES}": value for tag, value in values.items() if tag in TWINS}
            if num_samples is not None and twins:
                file.add_scalars(tuple(twins), list(twins.values()), int(num_samples), now)
            self._queued(len(values) + (len(twins) if num_samples is not None else 0))

    def add_texts(self, texts: Sequence[tuple[str, str]]) -> None:
        """Append the entries of a configuration."""
        with self._lock:
            file = self._opened()
            for name, text in texts:
                file.add_text(f"{name}/text_summary", text, 1, time.time())
            self._queued(len(texts))

    def _opened(self) -> EventFile:
        if self._file is None:
            self._file = EventFile(self.folder, time.time())
            self.path = self._file.path
        return self._file

    def _queued(self, number: int) -> None:
        self._num_waiting += number
        if self._num_waiting >= self._queue_size and self._file is not None:
            self._num_waiting = 0
            self._file.flush()

    def close(self) -> None:
        """Let go of the file; it is finished when nobody uses it any more."""
        with _lock:
            self.num_users -= 1
            if self.num_users > 0:
                return
            _open.pop(self.folder, None)
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def open_events(settings: TensorBoardSettings, rank: int) -> RankEvents:
    """Return the event file of a rank: one per folder and process, whoever asks."""
    folder = Path(os.path.abspath(os.path.expanduser(settings.tensorboard_dir))) / f"rank_{rank}"
    with _lock:
        found = _open.get(folder)
        if found is None:
            found = _open[folder] = RankEvents(folder, settings.tensorboard_queue_size)
        found.num_users += 1
        return found
