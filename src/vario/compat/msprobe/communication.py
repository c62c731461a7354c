"""`cc_distribution`: communication between ranks, and the log of its call sites."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable

from vario.compat.msprobe.config import MonitorConfig
from vario.core.errors import TrainingStop
from vario.core.records import Collective
from vario.probes.speed.communication import Communication

log = logging.getLogger("vario")

_LOGGED_STEPS = 2


class CommunicationLogged(TrainingStop):
    """Raised to stop training after `cc_log_only` has printed the calls of two steps."""


class CommunicationLog:
    """The probe for a config, and the log of its calls after the second step."""

    def __init__(self, config: MonitorConfig, world_size: int) -> None:
        if world_size == 1:
            log.warning("cc_distribution: there is only one process, so there is no communication")
        lines = [re.compile(line) for line in config.cc_codeline]
        sides = ("input", "output") if config.cc_pre_hook else ("output",)
        self._stops = config.cc_log_only
        self._num_steps = 0
        self.probe = Communication(
            lambda call: not lines or any(line.search(stack_text(call)) for line in lines),
            () if config.cc_log_only else sides,
            per_pass=False,
        )

    def step_recorded(self, say: Callable[[str], None]) -> None:
        """Handle the end of a step; after the second one print the calls, and stop if only they were requested."""
        self._num_steps += 1
        if self._num_steps != _LOGGED_STEPS:
            return
        say(f"cc_distribution: calls of the first {_LOGGED_STEPS} steps:\n{self.text()}")
        if self._stops:
            raise CommunicationLogged(
                "cc_log_only: the calls of two steps are printed. Training stops here as requested; set cc_log_only to "
                "false to train, and cc_codeline to the lines you want to watch."
            )

    def text(self) -> str:
        """Return the calls as JSON, by name."""
        calls = {
            target: {
                "operation": call.operation,
                "dtype": call.dtype,
                "bytes": call.num_bytes,
                "group": list(call.ranks),
                "calls": self.probe.num_calls[target],
                "stack": stack_text(call),
            }
            for target, call in self.probe.collectives.items()
        }
        return json.dumps(calls, indent=2)


def stack_text(call: Collective) -> str:
    """Return the call stack in the form `cc_codeline` matches: `path[line]   function;...`, the innermost first."""
    places = (line.rpartition(" ") for line in call.stack)
    return ";".join(f"{place}   {function}" for place, _, function in places)
