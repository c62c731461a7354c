"""Summaries of arrays on the host, in C: one pass over each array, one call for many.

The library is built when vario is installed, if there is a C compiler (`tools/build_native.py`). Without it, or with
`VARIO_NATIVE=off` in the environment, numpy and the framework do the same with several passes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vario.core.records import COLUMNS, Table

FILE = "reduce.so"
VERSION = 1
"""What the library has to say of itself; one of another version is not used."""
DTYPES: Mapping[str, int] = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
"""Names of the types it reads, and their numbers there."""
MANY = 1 << 20
"""Elements from which on other threads run meanwhile. For less, waiting for the interpreter would take longer."""

Integers = npt.NDArray[np.int64]


class Library:
    """The functions of the library, for arrays given by their addresses and sizes."""

    def __init__(self, path: Path) -> None:
        self._alone, self._beside = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        if self._alone.vario_native_version() != VERSION:
            raise OSError(f"{path} is of another version of vario")
        number, array = ctypes.c_int64, ctypes.c_void_p
        for library in (self._alone, self._beside):
            library.vario_summarise.argtypes = [number, array, array, ctypes.c_int, ctypes.c_double, array]
            library.vario_squares.argtypes = [number, array, array, ctypes.c_int, array]
            library.vario_summarise.restype = library.vario_squares.restype = None

    def summarise(self, addresses: Integers, sizes: Integers, dtype: int, eps: float) -> Table:
        """Return the Summary of each array. All of them have this type and exist until the call returns."""
        table = np.empty((len(sizes), len(COLUMNS)))
        where = addresses.ctypes.data, sizes.ctypes.data
        self._chosen(sizes).vario_summarise(len(sizes), *where, dtype, eps, table.ctypes.data)
        return table

    def squares(self, addresses: Integers, sizes: Integers, dtype: int) -> npt.NDArray[np.float64]:
        """Return the sum of the squares of each array."""
        found = np.empty(len(sizes))
        where = addresses.ctypes.data, sizes.ctypes.data
        self._chosen(sizes).vario_squares(len(sizes), *where, dtype, found.ctypes.data)
        return found

    def _chosen(self, sizes: Integers) -> ctypes.CDLL:
        return self._beside if sizes.sum() >= MANY else self._alone


def _load() -> Library | None:
    if os.environ.get("VARIO_NATIVE", "").lower() in ("off", "0", "no", "false"):
        return None
    try:
        return Library(Path(__file__).with_name(FILE))
    except (OSError, AttributeError):
        return None  # not built, or for another machine


library = _load()
"""None where it was not built."""
