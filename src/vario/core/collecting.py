"""Python's garbage collector, kept from work that is in vain."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Keep the garbage collector from running.

    Watching a model of very many parts makes very many objects, all of which stay. The collector would look through
    them, and through the model, again and again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
