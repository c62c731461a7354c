"""Which MindSpore this is, and whether it can be used."""

from __future__ import annotations

import mindspore
import numpy as np

from vario.core.errors import UnsupportedRelease
from vario.core.package import refuse_older, release_of

OLDEST = (2, 10)
"""The oldest release that the tests run on."""
_BUILT_FOR_NUMPY_1 = (2, 11)
"""Releases before this one fail in their first operation if NumPy is newer than 1.26."""

# Before anything else of such a MindSpore is used.
refuse_older("mindspore", mindspore.__version__, OLDEST, "vario")


def check_numpy() -> None:
    """Raise if this MindSpore cannot compute with the installed NumPy."""
    numpy_release = release_of(np.__version__) or (1, 26)
    if (release_of(mindspore.__version__) or OLDEST) < _BUILT_FOR_NUMPY_1 and numpy_release >= (2, 0):
        raise UnsupportedRelease(
            f"watch: MindSpore {mindspore.__version__} does not work with NumPy {np.__version__}: its first operation "
            "fails. Install an older one: pip install 'numpy<2' 'pyarrow<25'"
        )


def versions() -> dict[str, str]:
    """Return the version of MindSpore."""
    return {"mindspore": str(mindspore.__version__)}
