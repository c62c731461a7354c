"""Updates without a backward pass of their own."""

from __future__ import annotations

from collections.abc import Iterator

from vario.core.quantities import LOSSES
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last


@rule("exact", needs="lr")
def repeated_update(step: Step, clean_steps: int = 40, updates: int = 3) -> Iterator[Finding]:
    """Updates that use the gradients of the previous update again.

    Why: the optimizer is called twice for one batch. The effective learning rate doubles, and the schedule runs ahead.
    A loop that does so from its first steps on does it on purpose.

    Cause (global): `optimizer.step()` is called again without a backward pass in between, or the model was replaced
    by a copy and backward no longer reaches the parameters that the optimizer holds

    Points to (global): loop 4, optimizer 1

    Next: Look for a second call of `optimizer.step()`: in a callback, in a wrapper, or in a trainer that calls it too.
    """
    if any(name in step.scalars for name in LOSSES):
        return
    seen = step.memory.get("repeated_update", Last)
    row = seen.row("update")
    before = seen["value"].item(row)
    if not before > 0:
        # The first one decides: an early one is by design.
        is_early = step.number - step.memory.first_step(step.number) < clean_steps
        before = -1.0 if is_early or before < 0 else 0.0
    count = before if before < 0 else before + 1
    seen["value"][row] = count
    if count == updates:
        yield Finding(
            f"{updates} updates had no backward pass of their own: they used the gradients of the update before again",
            "update",
            value=float(updates),
            scope="global",
            strength=1e3,
            severity="warn",
        )
