"""Optimizers that no longer take their turn."""

from __future__ import annotations

from collections.abc import Iterator

from vario.core.quantities import OPTIMIZER_IDLE
from vario.rules import Finding, Step, rule


@rule("exact", needs=OPTIMIZER_IDLE, stage="optimizer")
def optimizer_idle(step: Step) -> Iterator[Finding]:
    """One of several optimizers that stopped updating while another goes on.

    Why: its part of the model is no longer trained. A loop that trains one part after the other does so on purpose, so
    this is a note.

    Cause: this part is not updated any more: its optimizer is no longer stepped

    Points to: loop 4, optimizer 2

    Next: Check the condition under which this optimizer's `step()` is called.
    """
    for name in [name for name in step.scalars if name.startswith(OPTIMIZER_IDLE)]:
        part, last = name.removeprefix(OPTIMIZER_IDLE), int(step.scalars[name])
        yield Finding(
            f"the optimizer of '{part}' has made no update since step {last}, and the other one goes on",
            "update",
            part,
            float(last),
            strength=5.0,
            since=last + 1,
            severity="note",
        )
