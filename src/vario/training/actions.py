"""What a Monitor does about incidents: notify, record more, save tensors, request a checkpoint or a stop.

Incidents come from the writer thread. Actions that touch the model run on the training thread, at the end of a step.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend
from vario.config import ESCALATED, Config
from vario.core.errors import ConfigError
from vario.core.parameter_list import names_of
from vario.core.records import StepRecord
from vario.core.run_header import RunHeader
from vario.core.text import reason, size
from vario.notices.sending import Notices
from vario.rules.api.alerts import SEVERITIES, Alert, Incident
from vario.sinks import PartsOff
from vario.store.snapshots import MOST_SNAPSHOTS, ActionLines, SnapshotFolder
from vario.training.observer import QuantityObserver
from vario.training.snapshots import Batches, parameters_of, take

log = logging.getLogger("vario")

MOST_PROLONGED = 5
"""Consecutive incidents extend escalation to at most this many times its length."""


class Failed(Protocol):
    """Called when a part failed."""

    def __call__(self, part: str, error: Exception, elsewhere: bool = False) -> None:
        """`elsewhere`: on a thread that is neither the training thread nor the writer thread."""


class Reactions:
    """Runs the actions for incidents of one rank. It is a sink because it reads the records as they arrive."""

    name: ClassVar[str] = "reactions"
    first_step: ClassVar[int] = 0

    def __init__(
        self,
        config: Config,
        backend: Backend,
        observers: Sequence[QuantityObserver],
        is_leading: bool,
        failed: Failed,
    ) -> None:
        self._config = config
        self._backend = backend
        self._observers = observers
        self._failed = failed
        self._incidents: queue.SimpleQueue[tuple[Incident, list[str]]] = queue.SimpleQueue()
        """Incidents, and the actions to run for each."""
        self._answered: set[tuple[str, str]] = set()
        """Incidents and rules whose actions were run."""
        self._off: set[str] = set()
        self._batches = Batches()
        self._keeps_batches = config.takes("snapshot")
        self._writing: list[threading.Thread] = []
        self._escalated_from = self._escalated_until = -1
        self._wants_checkpoint = False
        self.should_stop = False
        """Whether an incident asks to stop training."""
        self.notices: Notices | None = None
        try:
            self.notices = Notices(
                config, None if is_leading else backend.rank, lambda part, error: failed(part, error, elsewhere=True)
            )
        except ConfigError as error:
            if is_leading:
                raise
            # If one rank raises, the other ranks wait for it forever.
            log.warning("rank %d sends no notifications: %s", backend.rank, error)

    # A sink

    def open(self, header: RunHeader) -> None:
        """Remember the folder to write to."""
        self._run, self._rank = header.path.name, header.rank
        self._parameters = names_of(header.structure["parameters"])
        folder = header.path / f"rank{header.rank}"
        has_folder = "store" in self._config.sinks
        self._lines = ActionLines(folder) if has_folder else None
        self._snapshots = SnapshotFolder(folder, self._config.snapshot_bytes) if has_folder else None

    def write(self, record: StepRecord) -> None:
        """Keep the model's inputs, in case a snapshot needs them."""
        if self._keeps_batches:
            self._batches.see(record)
        if self.notices is not None:
            self.notices.stepped(record.step, self._run)

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Do nothing: failures are not kept here."""

    def close(self, state: str, error: str | None) -> None:
        """Run the actions still possible for the last incidents, and wait for writes and notifications to finish."""
        self._act(self._backend.clock.step, is_over=True)
        for thread in self._writing:
            thread.join()
        if self.notices is not None:
            self.notices.close()

    # Incidents

    def came(self, incident: Incident) -> None:
        """Take an incident, on the writer thread."""
        if self.notices is not None:
            self.notices.send(incident, self._run)
        if self._config.actions:
            self._answered.update((incident.id, alert.rule) for alert in (incident.lead, *incident.alerts))
            self._incidents.put((incident, self._wanted(incident)))

    def joined(self, incident: Incident, alert: Alert) -> None:
        """Take an alert that joined an incident late, on the writer thread: its rule may have actions of its own."""
        actions = self._config.actions_of(alert.rule)
        if actions and (incident.id, alert.rule) not in self._answered:
            self._answered.add((incident.id, alert.rule))
            self._incidents.put((replace(incident, lead=alert), actions))

    def step_recorded(self, step: int) -> None:
        """Run pending actions at the end of a step, on the training thread."""
        if not self._incidents.empty():
            self._act(step)

    def _act(self, step: int, is_over: bool = False) -> None:
        while not self._incidents.empty():
            incident, actions = self._incidents.get()
            for action in actions:
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
        """Return the actions for the incident's severity, lower severities and the rules of its alerts, each once."""
        urgent = SEVERITIES[: SEVERITIES.index(incident.severity) + 1]
        keys = [*urgent, *(alert.rule for alert in (incident.lead, *incident.alerts))]
        return list(dict.fromkeys(action for key in keys for action in self._config.actions_of(key)))

    def _do(self, action: str, step: int, incident: Incident, is_over: bool) -> tuple[dict[str, Any], str] | None:
        """Run one action; return what to store and what to log, or None if nothing was done."""
        if action == "snapshot":
            return self._snapshot(step, incident)
        if is_over:
            return {"skipped": "the training was over"}, "not done: training has ended"
        if action == "escalate":
            return self._escalate(step)
        if action == "checkpoint":
            self._wants_checkpoint = True
            return {}, "a checkpoint was requested"
        if self.should_stop:
            return None
        self.should_stop = True
        return {}, "training was asked to stop"

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
        return {"last_step": last}, f"recording activations and their gradients up to step {last}"

    def take_checkpoint_wish(self) -> bool:
        """Whether an incident requested a checkpoint; reading it clears the request."""
        wanted, self._wants_checkpoint = self._wants_checkpoint, False
        return wanted

    def _snapshot(self, step: int, incident: Incident) -> tuple[dict[str, Any], str] | None:
        folder = self._snapshots
        if folder is None:
            return None
        if folder.is_full:
            self._off.add("snapshot")
            return {"skipped": f"there are {MOST_SNAPSHOTS} already"}, f"at most {MOST_SNAPSHOTS} are kept"
        kept = self._backend.offer(offered.Snapshots)
        if kept is None:
            self._off.add("snapshot")
            return {"skipped": "not offered"}, "this framework's backend offers no snapshots"
        taken = take(kept, parameters_of(incident, self._parameters), folder)
        if not taken.arrays:
            self._off.add("snapshot")
            return {"skipped": "no room"}, "no room left for any tensor; raise snapshot_bytes"
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
        words = f"{len(taken.arrays)} tensors of {size(num_bytes)} saved as snapshots/{name}.npz"
        return {"file": f"snapshots/{name}.npz", "bytes": num_bytes}, words

    def _tell(self, action: str, step: int, incident: Incident, done: dict[str, Any], words: str) -> None:
        cause = f"{incident.lead.label_or_rule} at step {incident.lead.step}"
        log.warning("rank %d, step %d: %s because of %s: %s", self._rank, step, action, cause, words)
        if self._lines is None:
            return
        line = {"action": action, "step": step, "rank": self._rank, **done, "incident": _in_short(incident)}
        try:
            self._lines.append(line)
        except OSError as error:
            # If the disk takes no line, the other actions still have to run.
            self._lines = None
            self._failed("actions recorded", error)


def _in_short(incident: Incident) -> dict[str, Any]:
    """Return enough to find the incident among those of the run."""
    return {
        "id": incident.id,
        "step": incident.step,
        "severity": incident.severity,
        "rule": incident.lead.rule,
        "place": incident.place,
        "text": incident.lead.text[:1000],
    }
