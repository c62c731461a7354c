"""Numbers that a trainer of another package reports by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class TrainerReports:
    """What the Trainer, Lightning, accelerate, ignite or skorch log of this model, under their names."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to reports; every rank has the same, so the leading one keeps them."""

        def reported(values: Mapping[str, Any]) -> None:
            recorder.log(**{str(name): value for name, value in values.items() if is_number(value)})

        if recorder.is_leading:
            watched.on_reported(recorder.guarded("trainer reports", reported))


def is_number(value: Any) -> bool:
    """Whether something reported is one number: Python's, numpy's or a tensor's."""
    if isinstance(value, (bool, str)) or value is None:
        return False
    if isinstance(value, (int, float)):
        return True
    return getattr(value, "shape", None) is not None and len(value.shape) == 0
