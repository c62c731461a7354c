"""A shell command as a way to tell incidents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any, ClassVar

from vario.notices.message import Message
from vario.notices.secrets import check_text, mask, reveal

TIMEOUT_SECONDS = 30.0


class Command:
    """A shell command, with the incident as JSON on its standard input and VARIO_* in its environment."""

    name: ClassVar[str] = "command"

    def __init__(self, options: str, rank: int | None = None) -> None:
        self._command = reveal(options, "notify.command")

    @staticmethod
    def check(options: Any) -> None:
        """Refuse what is no command line."""
        check_text(options, "notify.command", "a shell command")

    @staticmethod
    def shown(options: Any) -> str:
        """Nothing of it: a token is easily part of a command."""
        return mask(options)

    def send(self, message: Message) -> None:
        """Run it; an exit code other than 0 is a failure, and so is taking too long."""
        # What it writes to its standard error is for the console, and for nobody's files: it may hold secrets.
        process = subprocess.Popen(
            self._command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **_environment(message)},
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(message.to_json(), allow_nan=False).encode(), timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            # The shell and what it started: the one alone would leave the other behind.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise TimeoutError(f"the command took longer than {TIMEOUT_SECONDS:.0f} seconds") from None
        if process.returncode:
            raise OSError(f"the command ended with exit code {process.returncode}")


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
