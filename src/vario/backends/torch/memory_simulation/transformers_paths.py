"""Make transformers models take the code paths of a real run although their tensors are fake.

They treat fake tensors as a sign of tracing, and then avoid reading values: they build masks in full that a real run
omits. Here they see no tracing; the tape supplies the few values they read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def real_paths() -> Iterator[None]:
    """Keep transformers, if it is loaded, from noticing fake tensors."""
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "transformers" or module is None:
            continue
        names = vars(module)
        for word, replacement in (("is_tracing", _is_never), ("find_packed_sequence_indices", _none)):
            if callable(names.get(word)):
                changed.append((module, word, names[word]))
                setattr(module, word, replacement)
    try:
        yield
    finally:
        for module, word, original in changed:
            setattr(module, word, original)


def _is_never(*_: Any) -> bool:
    return False


def _none(*_: Any) -> None:
    return None
