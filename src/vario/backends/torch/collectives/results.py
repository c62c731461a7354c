"""Results of collectives in progress: read when they arrive, never kept alive for it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from typing import Any

import torch

from vario.backends.protocols.collectives import CallObserver, CollectiveFollower

_MAX_TIMED = 64
_MAX_WAITING = 1024
"""The most results that nothing has waited for yet; if a program never waits, the oldest are forgotten."""


class Result:
    """One call: the observers of its tensors, and its outputs."""

    def __init__(
        self,
        takers: list[tuple[CollectiveFollower, CallObserver]],
        outputs: list[torch.Tensor],
        is_on_host: bool,
        is_async: bool,
        is_of_reducer: bool,
    ) -> None:
        self.is_on_host = is_on_host
        self.is_async = is_async
        self.is_of_reducer = is_of_reducer
        self.has_outputs = bool(outputs)
        self.began = 0.0
        self._takers = takers
        self._outputs = outputs
        self._references: list[weakref.ref[torch.Tensor]] = []

    def let_go(self) -> list[int]:
        """Stop keeping the outputs alive; return where they are stored."""
        self._references = [weakref.ref(tensor) for tensor in self._outputs]
        addresses = [tensor.untyped_storage().data_ptr() for tensor in self._outputs]
        self._outputs = []
        return [address for address in addresses if address]

    @property
    def can_come(self) -> bool:
        """Whether any output is left for the result."""
        return any(reference() is not None for reference in self._references)

    def complete(self, ended: float | None = None) -> None:
        """Take the outputs, which are ready for the calling thread and stream."""
        try:
            # For a device the host's clock says nothing.
            seconds = (ended or time.perf_counter()) - self.began if self.is_on_host else None
            found = [tensor for reference in self._references if (tensor := reference()) is not None]
            outputs = self._outputs or (found if len(found) == len(self._references) else [])
            if outputs:
                self.observe("output", outputs)
            if seconds is not None:
                self.took(seconds)
        except Exception as error:  # noqa: BLE001 - the failure policy: whatever it is, training continues
            self.failed(error)
        finally:
            self._outputs = []
            self._references = []

    def observe(self, side: str, tensors: list[torch.Tensor]) -> None:
        """Pass tensors to all observers."""
        for _, taker in self._takers:
            taker.observe(side, tensors)

    def took(self, seconds: float) -> None:
        """Pass the duration to all observers."""
        for _, taker in self._takers:
            taker.took(seconds)

    def failed(self, error: Exception) -> None:
        """Report an error to all observers."""
        for follower, _ in self._takers:
            follower.failed(error)


class Durations:
    """How long calls took on a device, if the backend measures it: NCCL with TORCH_NCCL_ENABLE_TIMING=1."""

    def __init__(self) -> None:
        self._is_on = os.environ.get("TORCH_NCCL_ENABLE_TIMING", "").lower() in ("1", "y", "yes", "t", "true", "on")
        self._running: deque[tuple[Any, Result]] = deque(maxlen=_MAX_TIMED)

    def __bool__(self) -> bool:
        return bool(self._running)

    def add(self, work: Any, result: Result) -> None:
        """Read the duration of this call when it is complete."""
        if self._is_on and hasattr(work, "_get_duration"):
            self._running.append((work, result))

    def look(self) -> None:
        """Read the durations of calls that are complete by now; does not wait."""
        try:
            while self._running and self._running[0][0].is_completed():
                work, result = self._running.popleft()
                result.took(work._get_duration() / 1000)
        except (RuntimeError, IndexError):
            self._is_on = False  # this backend does not measure it
            self._running.clear()


class Waiting:
    """Results that are complete when the program waits for them, by handle or by output.

    Handles and outputs are weak references: if both are gone, nothing can wait any more, and the entry is removed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[int, tuple[weakref.ref[Any], Result, list[int]]] = OrderedDict()
        self._at_address: dict[int, int] = {}
        # The handle that the caller gets is created when the kernel has returned; ours must live until then for both to
        # be the same object. No other call comes from this thread before.
        self._newest = threading.local()

    def __bool__(self) -> bool:
        return bool(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def add(self, work: Any, result: Result) -> None:
        """Complete this result when the program waits for it."""
        addresses = result.let_go()
        with self._lock:
            number = id(work)
            # An earlier entry with this handle's id, or for the same memory, was never waited for.
            for old in {number, *(self._at_address[address] for address in addresses if address in self._at_address)}:
                self._drop(old)
            self._forget_unreachable()
            self._newest.work = work
            self._results[number] = weakref.ref(work), result, addresses
            self._at_address.update(dict.fromkeys(addresses, number))
            while len(self._results) > _MAX_WAITING:
                self._drop(next(iter(self._results)))

    def take(self, work: Any) -> Result | None:
        """Return the result of a handle, once."""
        with self._lock:
            found = self._results.get(id(work))
            if found is None or found[0]() is not work:
                return None
            return self._drop(id(work))

    def take_of_tensor(self, tensor: torch.Tensor) -> Result | None:
        """Return the result that goes to a tensor, once."""
        with self._lock:
            number = self._at_address.get(tensor.untyped_storage().data_ptr())
            return None if number is None else self._drop(number)

    def _forget_unreachable(self) -> None:
        gone = [number for number, (work, result, _) in self._results.items() if not (work() or result.can_come)]
        for number in gone:
            self._drop(number)

    def _drop(self, number: int) -> Result | None:
        found = self._results.pop(number, None)
        if found is None:
            return None
        for address in found[2]:
            if self._at_address.get(address) == number:
                del self._at_address[address]
        if getattr(self._newest, "work", None) is found[0]():
            self._newest.work = None
        return found[1]
