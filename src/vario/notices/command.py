"""Sends incidents to a shell command."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from typing import Any, ClassVar

from vario.notices.message import Message
from vario.notices.secrets import check_text, mask, reveal

TIMEOUT_SECONDS = 30.0
LONGEST_SECONDS = 45
"""If the training is killed while the command runs, only `timeout` can still end it."""


class Command:
    """A shell command, with the incident as JSON on its standard input and VARIO_* in its environment."""

    name: ClassVar[str] = "command"

    def __init__(self, options: str, rank: int | None = None) -> None:
        self._command = reveal(options, "notify.command")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    @staticmethod
    def check(options: Any) -> None:
        """Raise ConfigError for anything that is not a command line."""
        check_text(options, "notify.command", "a shell command")

    @staticmethod
    def shown(options: Any) -> str:
        """Return nothing of the command: it may contain a token."""
        return mask(options)

    def send(self, message: Message) -> None:
        """Run the command; raises for a non-zero exit code and for a timeout."""
        # Its standard error goes to the console but not to files: it may contain secrets.
        limit = ["timeout", "-s", "KILL", str(LONGEST_SECONDS)] if shutil.which("timeout") else []
        if self._is_over:
            raise TimeoutError("the training is over")
        self._process = process = subprocess.Popen(
            [*limit, "/bin/sh", "-c", self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **_environment(message)},
            start_new_session=True,
        )
        if self._is_over:
            _kill(process)
        try:
            process.communicate(json.dumps(message.to_json(), allow_nan=False).encode(), timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            raise TimeoutError(f"the command took longer than {TIMEOUT_SECONDS:.0f} seconds") from None
        finally:
            self._process = None
        if process.returncode:
            raise OSError(f"the command ended with exit code {process.returncode}")

    def give_up(self) -> None:
        """Stop the running command and start no more: the training is over and has waited long enough."""
        self._is_over = True
        if (process := self._process) is not None:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the shell and its children: killing the shell alone would leave them running."""
    # A process that has ended but was not waited for keeps its id, so the group is its own.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _environment(message: Message) -> dict[str, str]:
    incident = message.incident
    found = {
        "RUN": message.run,
        "TEXT": message.line,
        "SEVERITY": incident.severity,
        "RULE": incident.lead.rule,
        "STEP": incident.step,
        "RANK": "" if incident.rank is None else incident.rank,
        "PLACE": incident.place or "",
    }
    return {f"VARIO_{name}": str(value) for name, value in found.items()}
