"""Reading files that may be damaged in any way: whatever goes wrong becomes an error with a text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from vario.errors import RunError, VarioError
from vario.text import reason

log = logging.getLogger("vario")

Found = TypeVar("Found")


def guarded(read: Callable[..., Found], *arguments: Any) -> Found:
    """What `read` answers; a RunError instead of whatever a damaged file did to its reader."""
    try:
        return read(*arguments)
    except VarioError:
        raise
    except MemoryError as error:
        raise RunError("that is more than fits into memory; ask for fewer steps") from error
    except Exception as error:
        log.warning("a run cannot be read", exc_info=error)
        raise RunError(f"cannot be read: {reason(error)}") from error
