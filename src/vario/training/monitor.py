"""The Monitor: watches one model in the training process, and the one place where the failure policy lives.

A wrong option raises before the first step. After that nothing here raises into training: a part that fails is
logged once, switched off, and listed in the run. `strict=True` raises instead.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from vario.backends.base import TRAINING_LOOP
from vario.backends.finding import find_backend
from vario.backends.losses import BackwardLoss
from vario.config import Config
from vario.core.ending import ending
from vario.core.errors import ConfigError, TrainingStop
from vario.core.records import Frame, StepRecord
from vario.core.selector import Choice, Selector
from vario.probes import PROBES, Probe
from vario.rules import choose
from vario.rules.api.alerts import Incident
from vario.sinks import SINKS, Sink
from vario.sinks.alerts import Alerts
from vario.statistics import columns_needed
from vario.training import succession
from vario.training.actions import Reactions
from vario.training.folders import open_sinks, run_folder
from vario.training.forks import let_go_in_forks
from vario.training.header import run_header
from vario.training.leaving import Leaving
from vario.training.observer import QuantityObserver, Skips
from vario.training.plain_numbers import keep_number
from vario.training.plugins import left_out
from vario.training.step_buffer import StepFrames
from vario.training.writer import Writer

log = logging.getLogger("vario")


class Monitor:
    """Watches one model until it is closed; also a context manager. Made by `vario.watch`."""

    @succession.one_at_a_time
    def __init__(
        self,
        model: Any,
        optimizer: Any,
        config: Config,
        scaler: Any = None,
        *,
        choice: Choice | None = None,
        probes: Sequence[Probe] = (),
        sinks: Mapping[str, Sink] | None = None,
        passes_per_step: int = 1,
        group: str | None = None,
    ) -> None:
        """Other packages' ways of watching add to the config: their own choice of targets, probes and sinks."""
        self.config = config
        self.off: set[str] = set()
        self.path: Path | None = None
        """The run's folder; None on a rank that does not record, and without the sink `store`."""
        self.alerts: Alerts | None = None
        """What the rules found; None where no rule was asked for."""
        self.group = group  # what this run has in common with others of its process, see succession.py
        self.has_trained = False
        self._parts_off = left_out()
        self._notes_are_new = bool(self._parts_off)
        self._observers: list[QuantityObserver] = []
        self._step_ended_calls: list[Callable[[float], None]] = []
        self._step_recorded_calls: list[Callable[[int], None]] = []
        self._completed = self._closing = self._closed = False
        self._writer_error: Exception | None = None
        self._process = os.getpid()
        choice = choice or Selector(tuple(config.targets), config.invert)
        held = succession.make_room(model)
        held.begin()
        self._watched = find_backend(model, optimizer, choice, scaler, config.engine)
        if not config.replicas:
            self._watched.targets.leave_to_others(self._watched.rank, config.ranks)
        self._clock = self._watched.clock
        self._clock.passes_per_step = passes_per_step
        self._reactions = Reactions(config, self._watched, self._observers, self.is_leading, self.switch_off)
        self.sinks: dict[str, Sink] = {name: SINKS.get(name, "sinks")() for name in config.sinks}
        self.sinks.update(sinks or {})
        if chosen := choose(config.rules):
            self.alerts = Alerts(chosen, self.switch_off, writes="store" in config.sinks)
            self.sinks["reactions"] = self._reactions
            self.sinks["alerts"] = self.alerts
            self.alerts.on_incident(self._reactions.came)
            self.on_step_recorded(self.guarded("actions", self._reactions.step_recorded))
        self.frames = StepFrames(
            self._watched.summaries(config.eps, columns_needed(config.statistics)),
            Skips(self._watched.why_skipped),
            self._watched.describe
            if any(getattr(sink, "wants_forms", False) for sink in self.sinks.values())
            else None,
        )
        if config.ranks and self._watched.rank not in config.ranks:
            self._closed = True
            return
        # First the probes: a wrong option must not leave a run behind.
        self._attach_probes(probes)
        self._open_sinks()
        self._writer = Writer(self._write, partial(self.switch_off, "frames"))
        self._step_began = time.monotonic()
        self._begin_step()
        self._watched.attach(self)
        self._leaving = Leaving(self.close)
        self.on_step_ended(self._leaving.trained)
        let_go_in_forks(self)
        succession.opened(self, held)

    def _open_sinks(self) -> None:
        config, watched = self.config, self._watched
        folder, resume = Path(config.directory) / (config.name or "unwritten"), config.resume
        if "store" in config.sinks:
            ranks = (watched.rank, watched.world_size)
            folder, resume = run_folder(Path(config.directory), config.name, resume, *ranks)
        header = open_sinks(self.sinks, run_header(folder, resume, config, watched, self.group))
        self.path = header.path if "store" in config.sinks else None
        self._clock.step = max((sink.first_step for sink in self.sinks.values()), default=config.first_step or 0)

    def _attach_probes(self, more: Sequence[Probe]) -> None:
        asked = (*self.config.quantities, *self.config.idle_quantities)
        wanted = {quantity: PROBES.get(quantity, "quantities") for quantity in asked}
        always = {found.name: found.part for found in PROBES if found.part.quantity in ("scalar", "checksum")}
        for probe in [*(made() for made in {**wanted, **always}.values()), *more]:
            probe.attach(self._watched, self)

    # What users call

    def follows(self, optimizer: Any) -> bool:
        """Whether an optimizer's updates are steps of this Monitor."""
        return self._watched.targets.are_updated_by(optimizer)

    def watches(self, model: Any) -> bool:
        """Whether it has this model, or a part of it."""
        return not self._closed and self._watched.targets.hold(model)

    @property
    def is_leading(self) -> bool:
        """Whether this is the lowest rank that records: the one to speak for all."""
        return self._watched.rank == min(self.config.ranks, default=0) or self._watched.world_size == 1

    @property
    def step_number(self) -> int:
        """The number of the step in progress."""
        return self._clock.step

    @property
    def micro_step(self) -> int:
        """The number of the forward and backward pass in progress within the step."""
        return self._clock.micro_step

    @property
    def is_between_steps(self) -> bool:
        """Whether a step has ended and nothing of the next one has been seen."""
        return self._completed or not self.frames.has_rows

    @property
    def next_step_number(self) -> int:
        """The number the next step to be watched from its beginning has."""
        return self._clock.step + 1 if self._completed else self._clock.step

    def number_next_step(self, step: int) -> None:
        """Give the next step its number, for a trainer that counts by itself; what was logged before it stays there."""
        if self._closed or step == self.next_step_number:
            return
        if self.frames.has_rows and not self._completed:
            self._hand_over()
        self._clock.step = step - 1 if self._completed else step
        if not self._completed:
            self._begin_step()

    def frames_so_far(self) -> list[Frame]:
        """What the step in progress has observed by now; waits for the device."""
        return self.frames.so_far(self._clock.step)

    def wait(self) -> None:
        """Wait until every step handed over so far is written."""
        if not self._closed:
            self._writer.wait()

    def log(self, **values: Any) -> None:
        """Keep plain numbers of this step: Python numbers, or one-element tensors, which are not waited for."""
        if self._closed:
            return
        for name, value in values.items():
            try:
                keep_number(self.frames, name, value)
            except Exception as error:  # noqa: BLE001 - the failure policy
                self.switch_off(f"log {name}", error)
        if self._completed and self.frames.has_rows:
            self._hand_over()

    def batch(self, batch: Any) -> None:
        """Show a batch, any nest of tensors, where the model is not called with it; from then on only this counts."""
        if not self._closed:
            self._watched.batch_came(batch)

    def on_incident(self, call: Callable[[Incident], Any]) -> None:
        """Call with every incident the rules find on this rank, on a thread of its own."""
        if self.alerts is None:
            raise ConfigError("on_incident: there is nothing to wait for, since no rule is chosen")
        if self._reactions.notices is not None and not self._closed:
            self._reactions.notices.on_incident(call)

    @property
    def should_stop(self) -> bool:
        """Whether an incident on this rank asks for the end of the training (`actions`)."""
        return self._reactions.should_stop

    @property
    def should_checkpoint(self) -> bool:
        """Whether an incident on this rank asks for a checkpoint (`actions`); reading it clears it."""
        return self._reactions.take_checkpoint_wish()

    def step(self) -> None:
        """Say that a step has ended, where no torch optimizer shows it; from then on only this counts."""
        if not self._closed:
            self._clock.manual = True
            self._watched.update_by_hand()
            self.step_ended()

    def close(self, state: str = "finished", error: str | None = None) -> None:
        """Record the step in progress, write everything and leave the model as it was found. Safe to call twice."""
        if self._closed or os.getpid() != self._process:
            return
        self._closing = True
        self._watched.finish()
        succession.closed(self)
        # What raised and ended the training is worth keeping; what raised and was caught is no step, and neither is a
        # look at the trained model.
        is_a_look = self.has_trained and self._clock.is_only_forward and not self.frames.has_numbers
        may_drop = state == "finished" and not self._clock.has_update and TRAINING_LOOP not in self.off
        if may_drop and (self._watched.forget_what_failed() or is_a_look):
            self.frames.discard()
        self._watched.detach()
        if self._completed or self.frames.has_rows:
            self.step_ended()
        self._closed = True
        self._leaving.cancel()
        self._writer.close()
        # What the rules find at the very end is still told, and what fails then is still listed.
        ours = [name for name in ("alerts", "reactions") if name in self.sinks]
        for name in [*ours, *(name for name in self.sinks if name not in ours)]:
            self._note()
            self.guarded(f"sink {name}", self.sinks[name].close)(state, error)
        self._raise_what_the_writer_met()

    def let_go(self) -> None:
        """Watch no more and write nothing: this process was forked from the one that does."""
        if not self._closed:
            self._closed = True
            self._leaving.cancel()
            self._watched.detach()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close(*ending(error))

    # What `vario run` calls

    @property
    def is_busy_elsewhere(self) -> bool:
        """Whether another thread trains what it watches at this moment."""
        return not self._closed and self._watched.is_busy_elsewhere()

    def begin_with(self, losses: Sequence[BackwardLoss], is_over: bool) -> None:
        """Take the losses of a step that began before it was watched, and that may be over by now."""
        if not self._closed:
            self._watched.losses_came(losses)
            if is_over:
                self.step_ended()

    # What probes and the watched model call

    def observer(self, quantity: str, scale: Callable[[], Any] | None = None) -> QuantityObserver:
        """A quantity's way into the step in progress; what it sees is divided by `scale()`."""
        observer = QuantityObserver(self, quantity, scale)
        self._observers.append(observer)
        return observer

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """The same call, which switches the part off instead of raising."""

        def run(*args: Any) -> None:
            if part in self.off:
                return
            try:
                call(*args)
            except TrainingStop:
                raise
            except Exception as error:  # noqa: BLE001 - the failure policy
                self.switch_off(part, error)

        return run

    def switch_off(self, part: str, error: Exception, elsewhere: bool = False) -> None:
        """A part failed: say so once, list it in the run, go on without it. `elsewhere`: on a thread of its own."""
        if self.config.strict:
            if not (elsewhere or self._writer.runs_here()):
                raise error
            # The training thread raises it, at its next step.
            self._writer_error = self._writer_error or error
            self.off.add(part)
            return
        if part in self.off:
            return
        self.off.add(part)
        for observer in self._observers:
            observer.watching = observer.watching and observer.quantity not in self.off
        text = f"{type(error).__name__}: {error}"
        self._parts_off.append({"part": part, "step": self._clock.step, "error": text})
        where = self._watched.rank, self._clock.step
        log.warning("rank %d, step %d: '%s' failed and is switched off; training goes on. %s", *where, part, text)
        self._notes_are_new = True

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """Call with the seconds since the step before, when the step's updates are complete."""
        self._step_ended_calls.append(call)

    def on_step_recorded(self, call: Callable[[int], None]) -> None:
        """Call with the step's number once what it observed is on its way to the sinks; it may close the Monitor."""
        self._step_recorded_calls.append(call)

    def update_completed(self) -> None:
        """Hand over what this step has observed; a run that is killed in a long evaluation keeps its last update."""
        is_new = not self._completed
        if is_new:
            now = time.monotonic()
            for call in self._step_ended_calls:
                call(now - self._step_began)
            self._step_began = now
            self._completed = self.has_trained = True
        self._hand_over()
        if is_new and not self._closing:
            for told in self._step_recorded_calls:
                told(self._clock.step)

    def step_ended(self) -> None:
        """The training loop has turned to the next step."""
        if not self._completed or self.frames.has_rows:
            self.update_completed()
        self._completed = False
        self._clock.next_step()
        self._begin_step()

    def _hand_over(self) -> None:
        try:
            accepted = self._writer.put(self.frames.end(self._clock.step, time.time()))
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.switch_off("frames", error)
        else:
            if not accepted:
                self._notes_are_new = True
                if self._writer.num_refused == 1:
                    log.warning("step %d is not recorded: steps come faster than they can be written", self._clock.step)
        self._raise_what_the_writer_met()

    def _raise_what_the_writer_met(self) -> None:
        error, self._writer_error = self._writer_error, None
        if error is not None:
            raise error

    def _begin_step(self) -> None:
        for observer in self._observers:
            observer.begin_step(self._clock.step)
        self.frames.begin_step(observer.quantity for observer in self._observers if observer.watching)

    def _write(self, records: Sequence[StepRecord]) -> None:
        """On the writer's thread: give these steps to every sink."""
        one_by_one = []
        for name, sink in self.sinks.items():
            write_all = getattr(sink, "write_all", None)
            if write_all is None:
                one_by_one.append(self.guarded(f"sink {name}", sink.write))
            else:
                self.guarded(f"sink {name}", write_all)(records)
        for record in records:
            for write in one_by_one:
                write(record)
        self._note()

    def _note(self) -> None:
        """Tell the sinks what failed, on the thread that is theirs."""
        if self._notes_are_new:
            self._notes_are_new = False
            for name, sink in self.sinks.items():
                self.guarded(f"sink {name}", sink.note)(list(self._parts_off), self._writer.num_refused)
