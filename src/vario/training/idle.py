"""The Monitor that does nothing, for training that is not watched.

This module imports no numpy, pyarrow or framework, so training that is not watched does not pay for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from vario.core.records import Frame
    from vario.rules.api.alerts import Incident
    from vario.training.monitor import Monitor
    from vario.training.run_log import RunLog


def idle_monitor() -> Monitor:
    """What `vario.watch` returns when vario is disabled."""
    return cast("Monitor", IdleMonitor())


def idle_log() -> RunLog:
    """What `vario.start` returns when vario is disabled."""
    return cast("RunLog", IdleLog())


class IdleMonitor:
    """Accepts every call that a Monitor accepts, and does nothing."""

    path = None
    alerts = None
    step_number = 0
    micro_step = 0
    next_step_number = 0
    is_between_steps = True
    should_stop = False
    should_checkpoint = False

    def __init__(self) -> None:
        self.off: set[str] = set()
        self.sinks: Mapping[str, Any] = {}

    @property
    def is_leading(self) -> bool:
        """Whether this process is the first of its job, according to the launcher's environment."""
        return os.environ.get("RANK", "0") == "0"

    def follows(self, optimizer: Any) -> bool:
        """Always False: no updates are tracked."""
        return False

    def watches(self, model: Any) -> bool:
        """Always False: no model is watched."""
        return False

    def let_go(self) -> None:
        """Do nothing: there is nothing to undo."""

    def number_next_step(self, step: int) -> None:
        """Do nothing: steps have no number."""

    def frames_so_far(self) -> list[Frame]:
        """Return nothing: nothing was observed."""
        return []

    def wait(self) -> None:
        """Return at once: nothing is pending."""

    def log(self, **values: Any) -> None:
        """Do nothing: values are not kept, tensors are not read."""

    def log_figure(self, name: str, figure: Any, *, step: int | None = None) -> None:
        """Do nothing: the figure is not drawn."""

    def log_table(
        self, name: str, table: Any, columns: Sequence[str] | None = None, *, step: int | None = None
    ) -> None:
        """Do nothing: the table is not read."""

    def batch(self, batch: Any) -> None:
        """Do nothing: batches are not read."""

    def on_incident(self, call: Callable[[Incident], Any]) -> None:
        """Do nothing: there will be no incidents."""

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """Do nothing: no step is tracked."""

    def on_step_recorded(self, call: Callable[[int], None]) -> None:
        """Do nothing: no step is recorded."""

    def step(self) -> None:
        """Do nothing: no step is counted."""

    def close(self, state: str = "finished", error: str | None = None) -> None:
        """Do nothing: there is nothing to close."""

    def __enter__(self) -> IdleMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class IdleLog(IdleMonitor):
    """Accepts every call that a RunLog accepts, and does nothing."""

    def log(self, values: Any = None, /, **named: Any) -> None:
        """Do nothing: values are not kept, tensors are not read."""

    def stop(self, state: str = "finished", error: str | None = None) -> None:
        """Do nothing: there is nothing to stop."""

    def __enter__(self) -> IdleLog:
        return self
