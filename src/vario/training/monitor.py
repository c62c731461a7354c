"""The Monitor: watches one model in the training process. The failure policy is implemented here and nowhere else.

A wrong option raises before the first step. After that nothing here raises into training: a part that fails is
logged once, switched off, and listed in the run. `strict=True` raises instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from vario.backends.detect import find_backend
from vario.backends.protocols.capabilities import FoundModels, Replicas
from vario.backends.protocols.events import TRAINING_LOOP
from vario.backends.protocols.losses import BackwardLoss
from vario.config import Config
from vario.core.errors import ConfigError
from vario.core.process import last_guard
from vario.core.process.ending import ending
from vario.core.records import Frame, StepRecord
from vario.core.selector import Choice, Selector
from vario.probes import Probe
from vario.rules import choose
from vario.rules.api.alerts import Incident
from vario.sinks import Sink
from vario.sinks.alerts import Alerts
from vario.statistics import columns_needed
from vario.training import succession
from vario.training.actions import Reactions
from vario.training.attaching import attach_probes
from vario.training.attachments import KeepsAttachments
from vario.training.budget import keep_within
from vario.training.costs import Costs, is_sparse
from vario.training.failures import Failures
from vario.training.folders import make_sinks, open_sinks, run_folder, tell_live_sinks
from vario.training.forks import let_go_in_forks
from vario.training.found_params import FoundParams
from vario.training.header import run_header
from vario.training.leaving import Leaving
from vario.training.observer import QuantityObserver, Skips, begin_all
from vario.training.plugins import left_out
from vario.training.step_buffer import StepFrames
from vario.training.writer import Writer, derivations, give_to_sinks


class Monitor(KeepsAttachments):
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
        group: str | None = None,
    ) -> None:
        """Integrations add their own targets, probes and sinks to those of the config."""
        self.config = config
        self.costs = Costs()
        self.path: Path | None = None
        """The run's folder; None on a rank that does not record, and without the `store` sink."""
        self.alerts: Alerts | None = None
        """What the rules found; None if no rule is enabled."""
        self.params = FoundParams(config.params, model, optimizer)
        self.group = group  # shared by related runs of this process, see succession.py
        self._observers: list[QuantityObserver] = []
        self._failures = Failures(config.strict, self._observers, left_out())
        self.off = self._failures.off
        self.may_be_light = False
        self._step_ended_calls: list[Callable[[float], None]] = []
        self._light_step_ended_calls: list[Callable[[float], None]] = []
        self._step_recorded_calls: list[Callable[[int], None]] = []
        self._completed = self._closing = self._closed = self.has_trained = False
        self._process = os.getpid()
        choice = choice or Selector(tuple(config.targets), config.invert)
        held = succession.make_room(model)
        held.begin()
        self._backend = find_backend(model, optimizer, choice, scaler, config.engine)
        if not config.replicas and (replicas := self._backend.offer(Replicas)) is not None:
            replicas.leave_to_others(self._backend.rank, config.ranks)
        self._clock = self._backend.clock
        self._reactions = Reactions(config, self._backend, self._observers, self.is_leading, self.switch_off)
        own_probes, own_sinks = config.parts()
        self.sinks: dict[str, Sink] = {**make_sinks(config), **own_sinks, **(sinks or {})}
        if chosen := choose(config.rules):
            self.alerts = Alerts(chosen, self.switch_off, writes="store" in config.sinks)
            self.sinks.update(reactions=self._reactions, alerts=self.alerts)
            self.alerts.on_incident(self._reactions.came)
            tell_live_sinks(self.sinks, self.alerts)
            self.alerts.on_joined(self._reactions.joined)
            self.on_step_recorded(self.guarded("actions", self._reactions.step_recorded))
        summaries = self._backend.summaries(config.eps, columns_needed(config.statistics))
        self.frames = StepFrames(summaries, Skips(summaries.why_skipped))
        self.frames.derivations += derivations(self.sinks, self.guarded)
        if config.ranks and self._backend.rank not in config.ranks:
            self._closed = True
            return
        try:
            self._begin([*own_probes, *probes])
            succession.opened(self, held)
        except BaseException:
            self._give_up()
            raise

    def _begin(self, probes: Sequence[Probe]) -> None:
        self._unguard = last_guard.follow(partial(self.switch_off, TRAINING_LOOP))
        # Probes first: a wrong option must not leave a run behind.
        found = attach_probes(self, self._backend, self.config, probes, self._observers)
        self._not_offered, self._allows_light_steps = found
        self._open_sinks()
        budget = keep_within(self.config, self, self._backend, self._observers)
        self._writer = Writer(self._write, partial(self.switch_off, "frames"), None if budget is None else budget.wrote)
        self.costs.writer = self._writer.thread_number
        self._step_began = time.monotonic()
        self._begin_step()
        self._backend.attach(self)
        self._leaving = Leaving(self.close)
        self.on_step_ended(self._leaving.trained)
        let_go_in_forks(self)

    def _open_sinks(self) -> None:
        config, backend = self.config, self._backend
        directory = Path(config.local_directory)
        folder, resume = directory / (config.name or "unwritten"), config.resume
        if "store" in config.sinks:
            folder, resume = run_folder(directory, config.name, resume, backend.rank, backend.world_size)
        known = (config, backend, self.group, self._not_offered, self.params)
        header = open_sinks(self.sinks, run_header(folder, resume, *known))
        self.path = header.path if "store" in config.sinks else None
        self._clock.step = max((sink.first_step for sink in self.sinks.values()), default=config.first_step or 0)

    # What users call

    def follows(self, optimizer: Any) -> bool:
        """Whether an optimizer's updates are steps of this Monitor."""
        found = self._backend.offer(FoundModels)
        return found is not None and found.are_updated_by(optimizer)

    def watches(self, model: Any) -> bool:
        """Whether this Monitor watches the model, or a part of it."""
        return not self._closed and self._backend.holds(model)

    @property
    def is_leading(self) -> bool:
        """Whether this is the lowest rank that records: the one that reports for all ranks."""
        return self._backend.rank == min(self.config.ranks, default=0) or self._backend.world_size == 1

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
        """Whether a step has ended and nothing of the next step has been seen."""
        return self._completed or not self.frames.has_rows

    @property
    def next_step_number(self) -> int:
        """The number of the next step that is watched from its beginning."""
        return self._clock.step + 1 if self._completed else self._clock.step

    def number_next_step(self, step: int) -> None:
        """Set the number of the next step, for a trainer that counts itself; values logged before keep theirs."""
        if self._closed or step == self.next_step_number:
            return
        if self.frames.has_rows and not self._completed:
            self._hand_over()
        self._clock.step = step - 1 if self._completed else step
        if not self._completed:
            self._begin_step()

    def frames_so_far(self) -> list[Frame]:
        """Return what the step in progress has observed so far; waits for the device."""
        return self.frames.so_far(self._clock.step)

    def wait(self) -> None:
        """Wait until every step handed over so far is written."""
        if not self._closed:
            self._writer.wait()

    def log(self, **values: Any) -> None:
        """Log plain numbers of this step: Python numbers or one-element tensors. Does not wait for the device."""
        if self._closed:
            return
        for name, value in values.items():
            try:
                self.frames.log(name, value)
            except Exception as error:  # noqa: BLE001 - the failure policy
                self.switch_off(f"log {name}", error)
        if self._completed:
            last_guard.safely(self._hand_over_rows)

    def batch(self, batch: Any) -> None:
        """Pass a batch (nested tensors) if the model is not called with it; from then on only these batches count."""
        if not self._closed:
            last_guard.safely(self._backend.batch_came, batch)

    def on_incident(self, call: Callable[[Incident], Any]) -> None:
        """Call `call` with every incident the rules find on this rank, on its own thread."""
        if self.alerts is None:
            raise ConfigError("on_incident: no rule is enabled, so there will be no incidents")
        if self._reactions.notices is not None and not self._closed:
            self._reactions.notices.on_incident(call)

    @property
    def should_stop(self) -> bool:
        """Whether an incident on this rank asks to stop training (`actions`)."""
        return self._reactions.should_stop

    @property
    def should_checkpoint(self) -> bool:
        """Whether an incident on this rank requests a checkpoint (`actions`); reading it clears it."""
        return self._reactions.take_checkpoint_wish()

    def step(self) -> None:
        """Mark the end of a step if no optimizer does; from then on only these calls count."""
        if not self._closed:
            self._clock.manual = True
            last_guard.safely(self._backend.updated_by_hand)
            last_guard.safely(self.step_ended)

    def close(self, state: str = "finished", error: str | None = None) -> None:
        """Record the step in progress, write everything and leave the model as it was. Safe to call twice."""
        if self._closed or os.getpid() != self._process:
            return
        self._closing = True
        has_failed = last_guard.value(self._backend.finish, True)
        may_drop = last_guard.value(partial(self._has_no_last_step, state, has_failed), False)
        for end in (
            partial(succession.closed, self),
            self._backend.detach,  # hands over what still waits to be reduced
            partial(self._end_last_step, may_drop),
            self._leaving.cancel,
            self._writer.close,
            partial(self._close_sinks, state, error),
        ):
            last_guard.safely(end)
        self._unguard()
        self._failures.raise_what_the_writer_met()

    def _has_no_last_step(self, state: str, has_failed: bool) -> bool:
        # A step that raised and ended training is worth keeping. One whose exception was caught is not a step, and
        # neither is a forward pass after training.
        is_a_look = self.has_trained and self._clock.is_only_forward and not self.frames.has_numbers
        return state == "finished" and not self._clock.has_update and (has_failed or is_a_look)

    def _end_last_step(self, may_drop: bool) -> None:
        try:
            if may_drop and TRAINING_LOOP not in self.off:
                self.frames.discard()
            if self._completed or self.frames.has_rows:
                self.step_ended()
        finally:
            self._closed = True

    def _close_sinks(self, state: str, error: str | None) -> None:
        # Incidents found at the very end are still reported, and parts that fail then are still listed.
        ours = [name for name in ("alerts", "reactions") if name in self.sinks]
        for name in [*ours, *(name for name in self.sinks if name not in ours)]:
            last_guard.safely(self._note)
            last_guard.safely(self.guarded(f"sink {name}", self.sinks[name].close), state, error)

    def let_go(self) -> None:
        """Stop watching and write nothing: this process was forked from the one that does."""
        if not self._closed:
            self._closed = True
            for end in (self._leaving.cancel, self._backend.detach, self._unguard):
                last_guard.safely(end)

    def _give_up(self) -> None:
        """Leave everything as it was: watching could not begin."""
        self._closed = True
        last_guard.safely(self._backend.detach)
        self._unguard()
        if "_writer" in vars(self):
            last_guard.safely(self._writer.close)
            last_guard.safely(self._close_sinks, "failed", "watching could not begin")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close(*ending(error))

    # What `vario run` calls

    @property
    def is_busy_elsewhere(self) -> bool:
        """Whether another thread is training the watched model right now."""
        found = self._backend.offer(FoundModels)
        return not self._closed and found is not None and found.is_busy_elsewhere()

    def begin_with(self, losses: Sequence[BackwardLoss], is_over: bool) -> None:
        """Take the losses of a step that began before vario.watch, and that may have ended."""
        if not self._closed:
            if (found := self._backend.offer(FoundModels)) is not None:
                found.losses_came(losses)
            if is_over:
                self.step_ended()

    # What probes and the watched model call

    def observer(self, quantity: str, scale: Callable[[], Any] | None = None) -> QuantityObserver:
        """Return the Observer of a quantity; it divides tensors by `scale()`."""
        observer = QuantityObserver(self, quantity, scale)
        self._observers.append(observer)
        return observer

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """Return the same call, which switches the part off instead of raising."""
        return self.costs.guarded(part, call, self.off, self.switch_off)

    def switch_off(self, part: str, error: Exception, elsewhere: bool = False) -> None:
        """Log a failed part once, list it in the run and go on without it. `elsewhere`: it failed on its own thread."""
        raises = self.config.strict and not (elsewhere or self._writer.runs_here())
        self._failures.switch_off(part, error, self._backend.rank, self._clock.step, raises)

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """Call `call` with the seconds since the previous step, when the step's updates are complete."""
        self._step_ended_calls.append(call)
        self._light_step_ended_calls += [call] * (not is_sparse(call))

    def on_step_recorded(self, call: Callable[[int], None]) -> None:
        """Call `call` with the step's number once its record is on its way to the sinks; it may close the Monitor."""
        self._step_recorded_calls.append(call)

    def update_completed(self) -> None:
        """Hand over what this step has observed, so a run killed during a long evaluation keeps its last update."""
        is_new = not self._completed
        if is_new:
            now = time.monotonic()
            took, self._step_began = now - self._step_began, now
            for call in self._step_ended_calls if not self.costs.is_sparse_step else self._light_step_ended_calls:
                call(took)
            self._completed = self.has_trained = True
        self._hand_over()
        if is_new and not self._closing:
            for told in self._step_recorded_calls:
                told(self._clock.step)

    def step_ended(self) -> None:
        """End the step: the training loop has started the next one."""
        if not self._completed or self.frames.has_rows:
            self.update_completed()
        self._completed = False
        self._clock.next_step()
        self._begin_step()

    def _hand_over_rows(self) -> None:
        if self.frames.has_rows:
            self._hand_over()

    def _hand_over(self) -> None:
        began = perf_counter()
        try:
            accepted = self._writer.put(self.frames.end(self._clock.step, time.time()))
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.switch_off("frames", error)
        else:
            if not accepted:
                self._failures.dropped(self._clock.step, self._writer.num_refused)
        self.costs.add("frames", perf_counter() - began)
        self._failures.raise_what_the_writer_met()

    def _begin_step(self) -> None:
        self.costs.begin_step(self._clock.step)
        watched = begin_all(self._observers, self._clock.step)
        self.may_be_light = self._allows_light_steps and self.costs.is_sparse_step and not watched
        self.frames.begin_step(watched)
        self._backend.step_began()

    def _write(self, records: Sequence[StepRecord]) -> None:
        """Give these steps to every sink. Runs on the writer thread."""
        give_to_sinks(self.sinks, records, self.guarded)
        self._note()

    def _note(self) -> None:
        """Pass the failed parts to the sinks, on the sinks' thread."""
        if self._failures.are_new:
            self._failures.are_new = False
            for name, sink in self.sinks.items():
                self.guarded(f"sink {name}", sink.note)(list(self._failures.parts_off), self._writer.num_refused)
