"""How a run ended, from the exception of its script."""

from __future__ import annotations

import signal

from vario.core.text import reason

FINISHED, CRASHED, INTERRUPTED = "finished", "crashed", "interrupted"
OVER = (FINISHED, CRASHED, INTERRUPTED)
"""States of a run after which no more steps follow."""

_STOPPED_BY = {128 + signal.SIGINT: "SIGINT", 128 + signal.SIGTERM: "SIGTERM"}
"""Exit codes of scripts that catch such a signal and exit."""


def ending(error: BaseException | None) -> tuple[str, str | None]:
    """Return state and error of a run whose script ended with this exception, or with none.

    Stopping a run (Ctrl-C, or a signal that the script turns into an exit) is not a crash.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, str(error) or None
    if isinstance(error, SystemExit):
        if isinstance(error.code, int) and error.code in _STOPPED_BY:
            return INTERRUPTED, _STOPPED_BY[error.code]
        return (CRASHED, reason(error)) if error.code else (FINISHED, None)
    return (FINISHED, None) if error is None else (CRASHED, reason(error))
