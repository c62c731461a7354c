"""Live numbers for Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vario.core.process.ending import FINISHED
from vario.sinks.live.live_sink import Batch, LiveSink


class WandB(LiveSink):
    """Logs to a run of its own, beside one that the script may have; hyper-parameters become its config."""

    name: ClassVar[str] = "wandb"
    package: ClassVar[str | None] = "wandb"
    options: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("project", "entity", "mode", "directory", "run_name"), (str,))
    }

    def start(self) -> None:
        """Start a run."""
        wandb: Any = importlib.import_module("wandb")
        chosen = self.chosen
        self._theirs = wandb.init(
            project=chosen.get("project", "vario"),
            entity=chosen.get("entity"),
            mode=chosen.get("mode"),
            dir=chosen.get("directory"),
            name=chosen.get("run_name", self.header.path.name),
            config=dict(self.header.params.values),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )

    def send(self, batches: Sequence[Batch]) -> None:
        """Log the steps; W&B takes them in order only."""
        for batch in batches:
            self._theirs.log(dict(batch.values), step=batch.step)

    def end(self, state: str) -> None:
        """Finish the run."""
        self._theirs.finish(exit_code=0 if state == FINISHED else 1)
