"""Caches responses while their files stay the same, up to a number of bytes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from vario.web.api.answers import Answer, Endpoint
from vario.web.served import Served

MOST_BYTES = 64 << 20
RUN_PARAMETERS = ("run", "a", "b")


def run_names(values: Mapping[str, Any]) -> list[str]:
    """Return the runs that a request names."""
    names = [name for key in RUN_PARAMETERS if (name := values.get(key)) is not None]
    return [name for found in names for name in (found if isinstance(found, list) else [found])]


class AnswerCache:
    """A cache of the last responses."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._answers: OrderedDict[object, Answer] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def key(self, endpoint: Endpoint, served: Served, values: Mapping[str, Any]) -> object | None:
        """Return what a response depends on: the address and the files of its runs; None if it must not be cached."""
        if not endpoint.is_cached:
            return None
        age = None if endpoint.fresh_seconds is None else int(time.monotonic() / endpoint.fresh_seconds)
        return (
            endpoint.path,
            repr(sorted(values.items())),
            tuple(hash(served.stamp(name)) for name in run_names(values)),
            age,
        )

    def get(self, key: object) -> Answer | None:
        """Return the cached response, if any."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
            return answer

    def put(self, key: object, answer: Answer) -> None:
        """Cache a response; evicts the oldest."""
        size = len(answer.body)
        if size > self._most_bytes // 4:
            return
        with self._lock:
            before = self._answers.pop(key, None)
            self._answers[key] = answer
            self._num_bytes += size - (0 if before is None else len(before.body))
            while self._num_bytes > self._most_bytes:
                _, dropped = self._answers.popitem(last=False)
                self._num_bytes -= len(dropped.body)
