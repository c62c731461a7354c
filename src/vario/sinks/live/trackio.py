"""Live numbers for Trackio."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vario.sinks.live.live_sink import Batch, LiveSink


class Trackio(LiveSink):
    """Logs to a run of a local project, or of a Space; hyper-parameters become its config."""

    name: ClassVar[str] = "trackio"
    package: ClassVar[str | None] = "trackio"
    options: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("project", "space_id", "server_url", "run_name"), (str,))
    }

    def start(self) -> None:
        """Start a run."""
        trackio: Any = importlib.import_module("trackio")
        chosen = self.chosen
        self._theirs = trackio.init(
            project=chosen.get("project", "vario"),
            name=chosen.get("run_name", self.header.path.name),
            space_id=chosen.get("space_id"),
            server_url=chosen.get("server_url"),
            config=dict(self.header.params.values),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def send(self, batches: Sequence[Batch]) -> None:
        """Log the steps."""
        for batch in batches:
            self._theirs.log(dict(batch.values), step=batch.step)

    def end(self, state: str) -> None:
        """Finish the run."""
        self._theirs.finish()
