"""Actions that a trainer must take on all ranks: a rank that stops or saves alone would leave the others waiting.

Ranks agree through the trainer's own reduction, and only if `actions` has `checkpoint` or `stop`. A reduction that one
rank never calls would hang the others, so ranks first check without a reduction that all of them take part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from vario.config import Config
from vario.training.monitor import Monitor

log = logging.getLogger("vario")

STEPS_BETWEEN = 10
"""How often ranks agree, in steps: each time the host waits for the device."""
WAIT_SECONDS = 30.0
"""How long the first agreement waits for ranks that have not started yet."""

_num_trainings = 0


class Decisions:
    """The requested actions of one Monitor, once per step, on every rank."""

    def __init__(self, config: Config, world_size: int, any_rank: Callable[[bool], bool]) -> None:
        """`any_rank` is the trainer's reduction: whether it is true on any rank. All ranks must create this object."""
        self._wishes = [action for action in ("checkpoint", "stop") if config.takes(action)]
        self._is_alone = world_size == 1
        self._any_rank = any_rank
        self._num_steps = 0
        self._checkpoint = False
        self._all_take_part: bool | None = None
        if self._wishes and not self._is_alone:
            self._roll_call = _RollCall(world_size)

    def take(self, monitor: Monitor | None) -> tuple[bool, bool]:
        """Return whether all ranks must save a checkpoint now, and whether to stop; call it after every step on every
        rank.

        Whether ranks communicate depends only on the config, not on what this rank's Monitor found.
        """
        if not self._wishes:
            return False, False
        stop = monitor is not None and monitor.should_stop
        self._checkpoint = self._checkpoint or (monitor is not None and monitor.should_checkpoint)
        if not self._is_alone:
            self._num_steps += 1
            if self._num_steps % STEPS_BETWEEN or not self._are_all_there():
                return False, False
            stop = "stop" in self._wishes and self._any_rank(stop)
            self._checkpoint = "checkpoint" in self._wishes and self._any_rank(self._checkpoint)
        checkpoint, self._checkpoint = self._checkpoint, False
        return checkpoint, stop

    def _are_all_there(self) -> bool:
        if self._all_take_part is None:
            self._all_take_part = self._roll_call.is_complete()
            if not self._all_take_part:
                log.warning(
                    "%s after an incident is disabled: not every rank has this callback with the same actions",
                    " and ".join(self._wishes),
                )
        return self._all_take_part


class _RollCall:
    """Checks that all ranks take part, through the job's key-value store, without waiting forever."""

    def __init__(self, world_size: int) -> None:
        global _num_trainings
        _num_trainings += 1
        self._world_size = world_size
        self._key = f"vario/decisions/{_num_trainings}"
        self._store = _store()
        if self._store is not None:
            self._store.add(self._key, 1)

    def is_complete(self) -> bool:
        """Return the same answer on all ranks: the first rank to know stores it."""
        if self._store is None:
            return False
        deadline = time.monotonic() + WAIT_SECONDS
        while (num_there := self._store.add(self._key, 0)) < self._world_size and time.monotonic() < deadline:
            time.sleep(0.05)
        own = "all" if num_there >= self._world_size else "some"
        found: bytes = self._store.compare_set(f"{self._key}/answer", "", own)
        return found == b"all"


def _store() -> Any:
    try:
        from torch.distributed import distributed_c10d, is_available, is_initialized

        return distributed_c10d._get_default_store() if is_available() and is_initialized() else None
    except Exception:
        # Without a store ranks cannot agree, so no action is taken.
        log.warning("ranks cannot agree on a checkpoint or a stop: this job has no key-value store", exc_info=True)
        return None
