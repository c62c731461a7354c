"""Returns memory that was freed to the system, where that cannot cost the training anything.

Tables of thousands of steps are sorted once in a while. What they used is free afterwards, but the C library keeps it
in pieces between memory in use, and the process grows by a few MB over days.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import pyarrow as pa

MOST_FREE_BYTES = 64 << 20
"""If more than this is free, the training is what frees and allocates memory: it would have to fetch it again."""


_NUMBERS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class _Allocated(ctypes.Structure):
    """What `mallinfo2` returns."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _NUMBERS)


def return_freed_memory() -> None:
    """Return the memory that Arrow and the C library keep for later."""
    pa.default_memory_pool().release_unused()
    library = _glibc()
    if library is not None and library.mallinfo2().fordblks < MOST_FREE_BYTES:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library if it can tell what is free (glibc 2.33 or newer), otherwise None."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2") or not hasattr(library, "malloc_trim"):
        return None
    library.mallinfo2.restype = _Allocated
    library.mallinfo2.argtypes = ()
    library.malloc_trim.argtypes = (ctypes.c_size_t,)
    return library
