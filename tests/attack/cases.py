"""How many hostile cases there are of each kind, and how they are run: the same ones every time, in batches.

`make test` runs PLAN; `make attack` ten times as many (VARIO_ATTACK=10), the first tenth of them the same.
"""

import logging
import os
import random
from collections.abc import Callable

import pytest

from vario.core.errors import VarioError

TIMES = int(os.environ.get("VARIO_ATTACK", "1"))
PLAN = {
    "run": 400,
    "command": 200,
    "log": 250,
    "config": 250,
    "answer": 300,
    "request": 450,
    "name": 150,
}
BATCH = 50
"""Cases of one test."""


class Complaints(logging.Handler):
    """Log records that hold a traceback: an error that nobody expected, and that somebody caught all the same."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, VarioError):
            self.found.append(error)


def batches(kind: str):
    """Parametrize a test with the batches of a kind."""
    return pytest.mark.parametrize("batch", range(-(-PLAN[kind] * TIMES // BATCH)))


def run_batch(kind: str, batch: int, request, attempt: Callable[[random.Random, list[str]], None]) -> None:
    """Try each case of a batch; all that failed are told, each with what was done in it.

    `attempt` gets the case's source of randomness and a list in which it notes what it does.
    """
    log = logging.getLogger("vario")
    failed: list[tuple[str, BaseException]] = []
    numbers = range(batch * BATCH, min((batch + 1) * BATCH, PLAN[kind] * TIMES))
    complaints, was_heard = Complaints(), log.propagate
    log.addHandler(complaints)
    log.propagate = False
    try:
        for number in numbers:
            story: list[str] = []
            try:
                attempt(random.Random(f"{kind} {number}"), story)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
                complaints.found.append(error)
            failed += [(f"{kind} {number}: {'; '.join(story)}: {error!r:.300}", error) for error in complaints.found]
            complaints.found = []
    finally:
        log.removeHandler(complaints)
        log.propagate = was_heard
    # Not by `record_property`, which a report in the usual family of junit takes amiss.
    request.node.user_properties.append(("cases", len(numbers)))
    if failed:
        raise AssertionError("\n".join(text for text, _ in failed)) from failed[0][1]
