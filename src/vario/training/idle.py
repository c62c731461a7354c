"""The Monitor of a training that is not watched: it does nothing.

Nothing here imports numpy, pyarrow or a framework: a training that is not watched does not pay for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from vario.core.records import Frame
    from vario.rules.api.alerts import Incident
    from vario.training.monitor import Monitor


def idle_monitor() -> Monitor:
    """What `vario.watch` returns when it is switched off."""
    return cast("Monitor", IdleMonitor())


class IdleMonitor:
    """Takes every call a Monitor takes, and does nothing."""

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
        """Whether this process is the first of its job, as far as the launcher's environment tells."""
        return os.environ.get("RANK", "0") == "0"

    def follows(self, optimizer: Any) -> bool:
        """No step is followed."""
        return False

    def watches(self, model: Any) -> bool:
        """No model is watched."""
        return False

    def let_go(self) -> None:
        """There is nothing to let go of."""

    def number_next_step(self, step: int) -> None:
        """Nothing is numbered."""

    def frames_so_far(self) -> list[Frame]:
        """Nothing was observed."""
        return []

    def wait(self) -> None:
        """There is nothing to wait for."""

    def log(self, **values: Any) -> None:
        """Nothing is kept; tensors are not looked at."""

    def batch(self, batch: Any) -> None:
        """Nothing is looked at."""

    def on_incident(self, call: Callable[[Incident], Any]) -> None:
        """There will be none."""

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """No step is followed."""

    def on_step_recorded(self, call: Callable[[int], None]) -> None:
        """No step is recorded."""

    def step(self) -> None:
        """No step is counted."""

    def close(self, state: str = "finished", error: str | None = None) -> None:
        """There is nothing to close."""

    def __enter__(self) -> IdleMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        pass
