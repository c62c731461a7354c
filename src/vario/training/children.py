"""Processes that a watched script starts with `multiprocessing`: those that train are watched too."""

from __future__ import annotations

import multiprocessing.spawn
import multiprocessing.util
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from vario.core.package import FOLDER

_WATCH = """
import sys
sys.path.append({path!r})
try:
    import pickle
    from vario.training.launch import watch_child
except ImportError:
    pass  # this process has other packages than its parent: it trains, unwatched
else:
    watch_child(*pickle.loads({settings!r}))
finally:
    sys.path.remove({path!r})
"""


class Stowaway:
    """Travels with the data a new process gets before it imports its script, and starts watching there.

    Unpickling it needs nothing but builtins: a process that cannot import vario must still start.
    """

    def __init__(self, settings: bytes) -> None:
        self._settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_WATCH.format(path=os.path.dirname(os.path.dirname(FOLDER)), settings=self._settings),)


def follow_spawned(*settings: Any) -> Callable[[], None]:
    """Watch with these settings in every process that is spawned or started by a fork server; return the undo."""
    try:
        stowaway = Stowaway(pickle.dumps(settings))
    except Exception:  # noqa: BLE001 - rules given as local functions stay in this process, and so does watching
        return lambda: None
    spawn: Any = multiprocessing.spawn
    original = spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        return {**original(name), "vario": stowaway}

    spawn.get_preparation_data = prepared

    def undo() -> None:
        if spawn.get_preparation_data is prepared:
            spawn.get_preparation_data = original

    return undo


def is_child() -> bool:
    """Whether `multiprocessing` started this process."""
    return multiprocessing.parent_process() is not None


def at_end_of_child(call: Callable[[BaseException | None], None]) -> Callable[[], None]:
    """Run `call(error)` when this process ends; such a process skips `atexit`.

    Return a call that undoes this.
    """
    process = os.getpid()

    def ended() -> None:
        if os.getpid() == process:
            call(sys.exc_info()[1])

    return multiprocessing.util.Finalize(None, ended, exitpriority=100).cancel
