"""Find live objects of a class anywhere in the process."""

from __future__ import annotations

import gc
from itertools import compress
from typing import Any, TypeVar

Instance = TypeVar("Instance")


def live_instances(kind: type[Instance]) -> list[Instance]:
    """Return all objects of this class, or of those derived from it, that the garbage collector knows."""
    wanted = {id(one) for one in (kind, *derived(kind))}
    objects = gc.get_objects()
    # No Python code runs per object. Referrers of the classes would be found without this list, but each reference in
    # the process is then compared with each class, and a program that imports transformers has a thousand of them.
    return list(compress(objects, map(wanted.__contains__, map(id, map(type, objects)))))  # type: ignore[arg-type]


def derived(kind: type[Any]) -> list[type[Any]]:
    """Return all classes derived from a class."""
    below: list[type[Any]] = type.__subclasses__(kind)
    return [*below, *(further for one in below for further in derived(one))]
