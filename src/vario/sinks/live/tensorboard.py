"""Live numbers for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from vario.core.event_file import EventFile
from vario.sinks.live.live_sink import Batch, LiveSink


class TensorBoard(LiveSink):
    """Writes event files to `tensorboard/<run>` beside the run; needs no package to write them."""

    name: ClassVar[str] = "tensorboard"
    options: ClassVar[Mapping[str, tuple[type, ...]]] = {"directory": (str,)}

    def start(self) -> None:
        """Open an event file."""
        path = self.header.path
        folder = self.chosen.get("directory")
        place = path.parent / "tensorboard" if folder is None else Path(folder)
        self._file = EventFile(place / path.name, self.header.started)

    def send(self, batches: Sequence[Batch]) -> None:
        """Append the steps."""
        for batch in batches:
            self._file.add_scalars(list(batch.values), list(batch.values.values()), batch.step, batch.time)
        self._file.flush()

    def end(self, state: str) -> None:
        """Close the file."""
        self._file.close()
