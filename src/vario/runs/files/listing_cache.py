"""Remembers what the small files and folders of runs contain, while one question is being answered.

A report of a job of a thousand ranks asks a hundred times for the same thousand listings and JSON files. They are read
again for each question: a run may be written while it is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_cache: ContextVar[dict[Any, Any] | None] = ContextVar("what was read for this question", default=None)


@contextmanager
def listings_cached() -> Iterator[None]:
    """Read each listing and each small file once while this lasts, in this thread; nested: as long as the outer one."""
    if _cache.get() is not None:
        yield
        return
    before = _cache.set({})
    try:
        yield
    finally:
        _cache.reset(before)


def cached_listing(read: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Remember what a function returns, which nobody may change, for each of its arguments."""

    @functools.wraps(read)
    def reading(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        known = _cache.get()
        if known is None:
            return read(*args, **kwargs)
        key = read, args, tuple(kwargs.items())
        if key not in known:
            known[key] = read(*args, **kwargs)
        answer: Answer = known[key]
        return answer

    return reading
