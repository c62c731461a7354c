"""Follow every collective operation of the process, whoever calls it.

All front ends (`torch.distributed`, DDP's reducer in C++, FSDP, DeepSpeed, functional collectives, compiled graphs) end
in the operators of the namespace `c10d`. A kernel at the dispatch key BackendSelect sees each of their calls and costs
nothing for other operators. It is installed while anyone follows, once per process. In the functional namespace only
`wait_tensor` has one: the others are also called while the compiler traces.

Nothing here raises into the caller, waits for what the caller does not wait for, or waits for a device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from vario.backends.protocols.collectives import CollectiveFollower
from vario.backends.protocols.events import Undo
from vario.backends.torch.collectives.calls import Calls, Operation, caller, is_issued_by_reducer, operation_of
from vario.backends.torch.collectives.results import Durations, Result, Waiting
from vario.backends.torch.loop import hooks

_KEY = torch._C.DispatchKey.BackendSelect
_AFTER = torch._C._dispatch_keyset_full_after(_KEY)
_UNREAD_SECONDS = 10.0
"""How long the end of backward waits for a thread that reads a result that has already arrived."""


def follow(follower: CollectiveFollower) -> Undo:
    """Report every call to this follower from now on; the last follower's undo restores torch."""
    with _lock:
        _followers.append(follower)
        if len(_followers) == 1:
            try:
                _taps.append(_Tap())
            except Exception:
                _followers.remove(follower)
                raise

    def undo() -> None:
        with _lock:
            if follower in _followers:
                _followers.remove(follower)
            if not _followers and _taps:
                _taps.pop().remove()

    return undo


_lock = threading.Lock()
_followers: list[CollectiveFollower] = []
_taps: list[_Tap] = []
"""The installed tap, while anyone follows."""


class _Tap:
    """The kernels, and the one method of torch that has no hook."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._waiting = Waiting()
        self._durations = Durations()
        self._libraries: list[torch.library.Library] = []
        self._put_back: list[Undo] = []
        try:
            self._install()
        except Exception:
            self.remove()
            raise

    def _install(self) -> None:
        if not dist.is_available():
            return
        library = self._library("c10d")
        for full_name in torch._C._dispatch_get_all_op_names():
            if full_name.startswith("c10d::"):
                name, _, overload = full_name.removeprefix("c10d::").partition(".")
                operator = getattr(getattr(torch.ops.c10d, name), overload or "default")
                operation = operation_of(operator)
                if operation is not None:
                    library.impl(operator, self._kernel(operator, operation), _KEY.name, with_keyset=True)
        operator = torch.ops._c10d_functional.wait_tensor.default
        self._library("_c10d_functional").impl(operator, self._wait_kernel(operator), _KEY.name, with_keyset=True)
        self._put_back.append(_after_waiting(self._waited))

    def _library(self, namespace: str) -> torch.library.Library:
        library = torch.library.Library(namespace, "IMPL")
        self._libraries.append(library)
        return library

    def remove(self) -> None:
        """Remove everything."""
        while self._put_back:
            self._put_back.pop()()
        while self._libraries:
            self._libraries.pop()._destroy()

    # Kernels

    def _kernel(self, operator: Any, operation: Operation) -> Callable[..., Any]:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            result: Result | None = None
            if self._durations:
                self._durations.look()
            if any(follower.listening for follower in _followers):
                result = self._begin(operation, args)
            returned = operator.redispatch(keys & _AFTER, *args, **kwargs)
            if result is not None:
                try:
                    self._follow_result(result, returned)
                except Exception as error:  # noqa: BLE001 - the failure policy: whatever it is, training continues
                    result.failed(error)
            return returned

        return kernel

    def _begin(self, operation: Operation, args: tuple[Any, ...]) -> Result | None:
        """Inspect a call before it happens; return None if nobody wants more of it."""
        followers = tuple(_followers)
        try:
            group = dist.ProcessGroup.unbox(args[operation.group])
            inputs, outputs = operation.input_tensors(args, group), operation.output_tensors(args, group)
            if any(_is_traced(tensor) for tensor in (*inputs, *outputs)):
                return None
            is_async = operation.is_async(args)
            frame = caller(2)
            call = self._calls.describe(operation, is_async, group, inputs or outputs, frame)
            asked = [(follower, follower.called(call)) for follower in followers if follower.listening]
            takers = [(follower, taker) for follower, taker in asked if taker is not None]
            if not takers:
                return None
            is_on_host = all(tensor.is_cpu for tensor in (*inputs, *outputs))
            result = Result(takers, outputs, is_on_host, is_async, is_async and is_issued_by_reducer(frame))
            if inputs:
                result.observe("input", inputs)
        except Exception as error:  # noqa: BLE001 - the failure policy
            for follower in followers:
                follower.failed(error)
            return None
        result.began = time.perf_counter()
        return result

    def _follow_result(self, result: Result, returned: Any) -> None:
        """Make sure that the result is read when it has arrived, and not before."""
        work = _work(returned)
        if work is not None and not result.is_on_host:
            self._durations.add(work, result)
        if not result.is_async:
            self._wait_as_the_caller_will(result, work)
        elif result.is_on_host and (future := _future(work)) is not None:
            _read_in_callback(result, future)
        elif result.is_of_reducer:
            # DDP waits for its buckets at the end of backward, on the thread and stream that continue from there.
            result.let_go()
            hooks.at_end_of_backward(result.complete)
        elif work is not None:
            self._waiting.add(work, result)

    def _wait_as_the_caller_will(self, result: Result, work: Any) -> None:
        if work is not None and (result.is_on_host or result.has_outputs):
            try:
                _plain_wait(work)
            except Exception:  # noqa: BLE001 - the caller waits next and gets the error
                return
        result.complete()

    def _wait_kernel(self, operator: Any) -> Callable[..., Any]:
        def kernel(keys: Any, tensor: torch.Tensor) -> Any:
            returned = operator.redispatch(keys & _AFTER, tensor)
            if self._waiting and not _is_traced(tensor):
                self._complete(self._waiting.take_of_tensor(tensor))
            return returned

        return kernel

    def _waited(self, work: Any) -> None:
        if self._waiting:
            self._complete(self._waiting.take(work))

    def _complete(self, result: Result | None) -> None:
        if result is not None:
            result.complete()


def _read_in_callback(result: Result, future: Any) -> None:
    """Read in the backend's own thread; no `Work.wait` returns before that."""
    is_read = threading.Event()

    def came(finished: Any) -> None:
        ended = time.perf_counter()
        try:
            finished.value()
        except Exception:  # noqa: BLE001 - a collective that failed has no result; the waiting caller gets the error
            return
        else:
            result.complete(ended)
        finally:
            is_read.set()

    future.add_done_callback(came)

    def read_by_now() -> None:
        if future.done():
            is_read.wait(_UNREAD_SECONDS)

    if result.is_of_reducer:
        # DDP waits for the future itself, which does not wait for callbacks.
        hooks.at_end_of_backward(read_by_now)


def _is_traced(tensor: torch.Tensor) -> bool:
    """Whether the compiler, or a simulation, only traces the call."""
    return tensor.is_meta or hasattr(tensor, "fake_mode")


def _work(returned: Any) -> Any:
    boxed = returned[-1] if isinstance(returned, (tuple, list)) else returned
    try:
        return None if boxed is None else dist.Work.unbox(boxed)
    except (RuntimeError, TypeError):
        return None  # a backend that has already waited returns no handle


def _future(work: Any) -> Any:
    try:
        return None if work is None else work.get_future()
    except RuntimeError:
        return None  # sends, receives and reduce-scatters of gloo have none


def _plain_wait(work: Any) -> None:
    """Wait without notifying ourselves."""
    _original_wait()(work)


def _original_wait() -> Any:
    found = vars(dist.Work)["wait"]
    return getattr(found, "_vario_original", found)


def _after_waiting(waited: Callable[[Any], None]) -> Undo:
    """Call `waited` with each Work that the program has waited for; the undo restores the very same method."""
    original = vars(dist.Work)["wait"]

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(work, *args, **kwargs)
        waited(work)
        return answer

    wait.__doc__ = original.__doc__
    wait._vario_original = original  # type: ignore[attr-defined]
    dist.Work.wait = wait  # type: ignore[method-assign, assignment]

    def undo() -> None:
        # If something else has wrapped ours meanwhile, its wrapper stays; ours then only forwards.
        if vars(dist.Work)["wait"] is wait:
            dist.Work.wait = original  # type: ignore[method-assign]

    return undo
