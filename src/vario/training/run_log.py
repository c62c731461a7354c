"""`vario.start`: plain numbers, figures and tables of a job without a model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from vario.backends.no_model import NoModel
from vario.config import Config
from vario.core.process.ending import ending
from vario.rules.api.alerts import Incident
from vario.training.attachments import checked_step
from vario.training.monitor import Monitor

log = logging.getLogger("vario")


class RunLog:
    """Logs the plain numbers of a job until it is stopped; also a context manager. Made by `vario.start`."""

    def __init__(self, config: Config, group: str | None = None) -> None:
        """Quantities are of a model, so none is watched, and no interval needs a budget."""
        numbers = replace(config, quantities=(), every={}, overhead="off")
        self._monitor = Monitor(NoModel(), None, numbers, group=group)
        self._lock = threading.RLock()
        self._has_warned = False
        self._last_step: int | None = None

    @property
    def path(self) -> Path | None:
        """The run's folder; None on a rank that does not record, and without the `store` sink."""
        return self._monitor.path

    @property
    def step_number(self) -> int:
        """The number of the next step: of the next call of `log` without a `step`."""
        return self._monitor.step_number

    def log(self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
        """Log plain numbers: a mapping, keywords or both. Without a `step`, every call is the next one.

        Numbers logged with the same `step` belong together; a step ends when a later one is logged. Safe from any
        thread.
        """
        numbers = {str(name): value for name, value in {**(values or {}), **named}.items()}
        with self._lock:
            if step is None:
                self._last_step = self._monitor.step_number
                self._monitor.log(**numbers)
                self._monitor.step()
            elif self._is_at(checked_step(step)):
                self._last_step = step
                self._monitor.log(**numbers)

    def _is_at(self, step: int) -> bool:
        """Go to a step; False if it has ended."""
        now = self._monitor.step_number
        if step < now:
            if not self._has_warned:
                self._has_warned = True
                log.warning("log: step %d has ended, so its numbers are dropped; the current step is %d", step, now)
            return False
        if step > now:
            if self._monitor.frames.has_rows:
                self._monitor.step()
            self._monitor.number_next_step(step)
        return True

    def log_figure(self, name: str, figure: Any, *, step: int | None = None) -> None:
        """Keep a matplotlib figure (or the bytes of a PNG) beside the run. Without a `step`, of the last one logged."""
        with self._lock:
            self._monitor.log_figure(name, figure, step=self._last_step if step is None else step)

    def log_table(
        self, name: str, table: Any, columns: Sequence[str] | None = None, *, step: int | None = None
    ) -> None:
        """Keep a small table beside the run: a pandas frame, columns by name, or a list of dicts or of rows."""
        with self._lock:
            self._monitor.log_table(name, table, columns, step=self._last_step if step is None else step)

    def on_incident(self, call: Callable[[Incident], Any]) -> None:
        """Call `call` with every incident the rules find, on its own thread."""
        self._monitor.on_incident(call)

    @property
    def should_stop(self) -> bool:
        """Whether an incident asks to stop (`actions`)."""
        return self._monitor.should_stop

    def wait(self) -> None:
        """Wait until every step that has ended is written."""
        self._monitor.wait()

    def stop(self, state: str = "finished", error: str | None = None) -> None:
        """Write everything and end the run. Safe to call twice; a script that ends without it ends its runs as well."""
        with self._lock:
            self._monitor.close(state, error)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop(*ending(error))
