"""Live numbers for MLflow."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from vario.core.process.ending import CRASHED, FINISHED, INTERRUPTED
from vario.sinks.live.live_sink import Batch, LiveSink

MOST_NUMBERS, MOST_PARAMS = 1000, 100
"""The most that MLflow takes in one call."""
MOST_CHARACTERS = 500
STATES = {FINISHED: "FINISHED", CRASHED: "FAILED", INTERRUPTED: "KILLED"}
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]")


class MLflow(LiveSink):
    """Logs to a run of its own in an experiment; hyper-parameters become its params."""

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str | None] = "mlflow"
    options: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("experiment", "tracking_uri", "run_name"), (str,))
    }

    def start(self) -> None:
        """Start a run, without touching the one that the script may have."""
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client = mlflow.MlflowClient(tracking_uri=self.chosen.get("tracking_uri"))
        experiment = self.chosen.get("experiment", "vario")
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        name = self.chosen.get("run_name", self.header.path.name)
        run = self._client.create_run(number, run_name=name, start_time=int(self.header.started * 1000))
        self._run_id = run.info.run_id
        params = self.header.params.values.items()
        written = [self._entities.Param(_key(key), str(value)[:MOST_CHARACTERS]) for key, value in params]
        for some in _in_pieces(written, MOST_PARAMS):
            self._client.log_batch(self._run_id, params=some)

    def send(self, batches: Sequence[Batch]) -> None:
        """Log the steps, many numbers in one call."""
        written = [
            self._entities.Metric(_key(name), value, int(batch.time * 1000), batch.step)
            for batch in batches
            for name, value in batch.values.items()
        ]
        for some in _in_pieces(written, MOST_NUMBERS):
            self._client.log_batch(self._run_id, metrics=some)

    def end(self, state: str) -> None:
        """End the run."""
        self._client.set_terminated(self._run_id, status=STATES.get(state, "FAILED"))


def _key(name: str) -> str:
    """MLflow takes fewer characters in names."""
    return _NOT_IN_NAMES.sub("_", name)[:250]


def _in_pieces(items: list[Any], most: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]
