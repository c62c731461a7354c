"""What a Monitor does about incidents: it tells them, looks closer, saves tensors, asks for a checkpoint or an end.

Incidents come from the writer's thread. What touches the model is done by the training thread, when a step is complete.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from vario.backends.base import Watched
from vario.config import ESCALATED, Config
from vario.core.errors import ConfigError
from vario.core.records import StepRecord
from vario.core.text import reason, size
from vario.notices.sending import Notices
from vario.rules.api.alerts import SEVERITIES, Incident
from vario.sinks import PartsOff, RunHeader
from vario.sinks.snapshots import MOST_SNAPSHOTS, ActionLines, SnapshotFolder
from vario.training.observer import QuantityObserver
from vario.training.snapshots import Batches, parameters_of, take

log = logging.getLogger("vario")

MOST_PROLONGED = 5
"""Incidents that go on keep the closer look at most so many times as long as one does."""


class Failed(Protocol):
    """Is told that a part failed."""

    def __call__(self, part: str, error: Exception, elsewhere: bool = False) -> None:
        """`elsewhere`: on a thread that is neither the training's nor the writer's."""


class Reactions:
    """All that follows from an incident on one rank. A sink among the others, for it looks at records as they come."""

    name: ClassVar[str] = "reactions"
    first_step: ClassVar[int] = 0

    def __init__(
        self,
        config: Config,
        watched: Watched,
        observers: Sequence[QuantityObserver],
        is_leading: bool,
        failed: Failed,
    ) -> None:
        self._config = config
        self._watched = watched
        self._observers = observers
        self._failed = failed
        self._incidents: queue.SimpleQueue[Incident] = queue.SimpleQueue()
        self._off: set[str] = set()
        self._batches = Batches()
        self._keeps_batches = config.takes("snapshot")
        self._writing: list[threading.Thread] = []
        self._escalated_from = self._escalated_until = -1
        self._wants_checkpoint = False
        self.should_stop = False
        """Whether an incident asks for the end of the training."""
        self.notices: Notices | None = None
        try:
            self.notices = Notices(
                config, None if is_leading else watched.rank, lambda part, error: failed(part, error, elsewhere=True)
            )
        except ConfigError as error:
            if is_leading:
                raise
            # One rank that raises leaves the others waiting for it.
            log.warning("rank %d tells nobody of incidents: %s", watched.rank, error)

    # A sink

    def open(self, header: RunHeader) -> None:
        """Know where to write."""
        self._run, self._rank = header.path.name, header.rank
        self._parameters = [parameter["name"] for parameter in header.structure["parameters"]]
        folder = header.path / f"rank{header.rank}"
        has_folder = "store" in self._config.sinks
        self._lines = ActionLines(folder) if has_folder else None
        self._snapshots = SnapshotFolder(folder, self._config.snapshot_bytes) if has_folder else None

    def write(self, record: StepRecord) -> None:
        """Keep what came into the model, in case it is asked for."""
        if self._keeps_batches:
            self._batches.see(record)
        if self.notices is not None:
            self.notices.stepped(record.step, self._run)

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Nothing to keep."""

    def close(self, state: str, error: str | None) -> None:
        """Do what can still be done about what came last, and wait for what is being written and sent."""
        self._act(self._watched.clock.step, is_over=True)
        for thread in self._writing:
            thread.join()
        if self.notices is not None:
            self.notices.close()

    # Incidents

    def came(self, incident: Incident) -> None:
        """An incident is told, on the writer's thread."""
        if self.notices is not None:
            self.notices.send(incident, self._run)
        if self._config.actions:
            self._incidents.put(incident)

    def step_recorded(self, step: int) -> None:
        """A step is complete, on the training thread: the time to act."""
        if not self._incidents.empty():
            self._act(step)

    def _act(self, step: int, is_over: bool = False) -> None:
        while not self._incidents.empty():
            incident = self._incidents.get()
            for action in self._wanted(incident):
                if action in self._off:
                    continue
                try:
                    done = self._do(action, step, incident, is_over)
                except Exception as error:  # noqa: BLE001 - the failure policy
                    self._off.add(action)
                    self._tell(action, step, incident, {"error": reason(error)}, "it failed")
                    self._failed(f"action {action}", error)
                else:
                    if done is not None:
                        self._tell(action, step, incident, *done)

    def _wanted(self, incident: Incident) -> list[str]:
        """The actions that its severity, those below it, and the rules of its alerts ask for, each once."""
        urgent = SEVERITIES[: SEVERITIES.index(incident.severity) + 1]
        keys = [*urgent, *(alert.rule for alert in (incident.lead, *incident.alerts))]
        return list(dict.fromkeys(action for key in keys for action in self._config.actions_of(key)))

    def _do(self, action: str, step: int, incident: Incident, is_over: bool) -> tuple[dict[str, Any], str] | None:
        """Act; what to write down and what to say, None where nothing was done."""
        if action == "snapshot":
            return self._snapshot(step, incident)
        if is_over:
            return {"skipped": "the training was over"}, "not done, the training is over"
        if action == "escalate":
            return self._escalate(step)
        if action == "checkpoint":
            self._wants_checkpoint = True
            return {}, "a checkpoint is asked for"
        if self.should_stop:
            return None
        self.should_stop = True
        return {}, "the training is asked to stop"

    # Actions

    def _escalate(self, step: int) -> tuple[dict[str, Any], str]:
        steps = self._config.escalate_steps
        if step + 1 >= self._escalated_until:
            self._escalated_from = step + 1
        self._escalated_until = min(step + 1 + steps, self._escalated_from + MOST_PROLONGED * steps)
        for observer in self._observers:
            if observer.quantity in ESCALATED:
                observer.watched_before = self._escalated_until
        last = self._escalated_until - 1
        return {"last_step": last}, f"activations and their gradients are watched up to step {last}"

    def take_checkpoint_wish(self) -> bool:
        """Whether an incident asks for a checkpoint; once."""
        wanted, self._wants_checkpoint = self._wants_checkpoint, False
        return wanted

    def _snapshot(self, step: int, incident: Incident) -> tuple[dict[str, Any], str] | None:
        folder = self._snapshots
        if folder is None:
            return None
        if folder.is_full:
            self._off.add("snapshot")
            return {"skipped": f"there are {MOST_SNAPSHOTS} already"}, f"no more than {MOST_SNAPSHOTS} are kept"
        taken = take(self._watched, parameters_of(incident, self._parameters), folder)
        if not taken.arrays:
            self._off.add("snapshot")
            return {"skipped": "no room"}, "there is no room left for any tensor; raise snapshot_bytes"
        name = folder.reserve(step, taken.arrays)
        description = {
            "step": step,
            "rank": self._rank,
            "incident": _in_short(incident),
            "tensors": taken.tensors,
            "left_out": taken.left_out,
            "batches": self._batches.latest(),
        }

        def write() -> None:
            try:
                folder.write(name, taken.arrays, description)
            except Exception as error:  # noqa: BLE001 - the failure policy
                self._off.add("snapshot")
                self._failed("action snapshot", error, elsewhere=True)

        thread = threading.Thread(target=write, name="vario-snapshot", daemon=True)
        thread.start()
        self._writing.append(thread)
        num_bytes = sum(array.nbytes for array in taken.arrays.values())
        words = f"{len(taken.arrays)} tensors of {size(num_bytes)} are saved as snapshots/{name}.npz"
        return {"file": f"snapshots/{name}.npz", "bytes": num_bytes}, words

    def _tell(self, action: str, step: int, incident: Incident, done: dict[str, Any], words: str) -> None:
        cause = f"{incident.lead.rule} at step {incident.lead.step}"
        log.warning("rank %d, step %d: %s because of %s: %s", self._rank, step, action, cause, words)
        if self._lines is None:
            return
        line = {"action": action, "step": step, "rank": self._rank, **done, "incident": _in_short(incident)}
        try:
            self._lines.append(line)
        except OSError as error:
            # A disk that takes no line is no reason to leave out what else is to be done.
            self._lines = None
            self._failed("actions written down", error)


def _in_short(incident: Incident) -> dict[str, Any]:
    """Enough to find the incident among those of the run."""
    return {
        "step": incident.step,
        "severity": incident.severity,
        "rule": incident.lead.rule,
        "place": incident.place,
        "text": incident.lead.text[:1000],
    }
