"""Find live objects of a class anywhere in the process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any, TypeVar

Instance = TypeVar("Instance")


class _Look(threading.local):
    kinds: Sequence[type[Any]] = ()
    found: Mapping[type[Any], list[Any]] | None = None


_look = _Look()
"""The look at the process that this thread shares between several questions, if any."""


def live_instances(kind: type[Instance]) -> list[Instance]:
    """Return all objects of this class, or of those derived from it, that the garbage collector knows."""
    if kind not in _look.kinds:
        return _instances_of([kind])[kind]
    if _look.found is None:
        _look.found = _instances_of(_look.kinds)
    return list(_look.found[kind])


@contextmanager
def one_look(*kinds: type[Any]) -> Iterator[None]:
    """Look at the process once for objects of these classes; while this lasts, nobody else may make any."""
    before = _look.kinds, _look.found
    _look.kinds, _look.found = kinds, None
    try:
        yield
    finally:
        _look.kinds, _look.found = before


def _instances_of(kinds: Sequence[type[Any]]) -> dict[type[Any], list[Any]]:
    wanted = {kind: {id(one) for one in (kind, *derived(kind))} for kind in kinds}
    classes = frozenset[int]().union(*wanted.values())
    objects = gc.get_objects()
    # No Python code runs per object. Referrers of the classes would be found without this list, but each reference in
    # the process is then compared with each class, and a program that imports transformers has a thousand of them.
    found = list(compress(objects, map(classes.__contains__, map(id, map(type, objects)))))
    return {kind: [each for each in found if id(type(each)) in numbers] for kind, numbers in wanted.items()}


def derived(kind: type[Any]) -> list[type[Any]]:
    """Return all classes derived from a class."""
    below: list[type[Any]] = type.__subclasses__(kind)
    return [*below, *(further for one in below for further in derived(one))]
