"""Values that a trainer of another package reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vario.backends.protocols import loop_capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.probes import Needs, Recorder


class TrainerReports:
    """Values that the Trainer, Lightning, accelerate, ignite or skorch log for this model, under their names."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (offered.TrainerReports,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to reports; all ranks get the same ones, so the leading rank records them."""

        def reported(values: Mapping[str, Any]) -> None:
            recorder.log(**{str(name): value for name, value in values.items() if is_number(value)})

        if recorder.is_leading:
            needed(backend, offered.TrainerReports).on_reported(recorder.guarded("trainer reports", reported))


def is_number(value: Any) -> bool:
    """Whether a reported value is one number: Python's, numpy's or a tensor's."""
    if isinstance(value, (bool, str)) or value is None:
        return False
    if isinstance(value, (int, float)):
        return True
    return getattr(value, "shape", None) is not None and len(value.shape) == 0
