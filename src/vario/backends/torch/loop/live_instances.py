"""Objects of a class that are alive anywhere in the process."""

from __future__ import annotations

import gc
from typing import Any, TypeVar

Instance = TypeVar("Instance")


def live_instances(kind: type[Instance]) -> list[Instance]:
    """All objects of this class, or of one of the few derived from it, that the garbage collector knows."""
    kinds = [kind, *derived(kind)]
    wanted = {id(one) for one in kinds}
    # An instance refers to its class. Asking for referrers passes over hundreds of thousands of objects in C; a look at
    # each from Python takes three times as long, at each start of a Monitor.
    return [found for found in gc.get_referrers(*kinds) if id(type(found)) in wanted]


def derived(kind: type[Any]) -> list[type[Any]]:
    """All classes below a class."""
    below: list[type[Any]] = type.__subclasses__(kind)
    return [*below, *(further for one in below for further in derived(one))]
