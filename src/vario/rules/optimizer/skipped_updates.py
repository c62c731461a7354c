"""A loss scaler that cannot find its scale."""

from __future__ import annotations

from collections.abc import Iterator

from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak


@rule("exact", needs="skipped_step", stage="optimizer")
def skipped_updates(step: Step, steps: int = 8) -> Iterator[Finding]:
    """Updates skipped by the loss scaler several times in a row.

    Why: the scaler halves its scale at each skip and normally finds the right one after a few. If it never does,
    gradients overflow at any scale and training makes no progress.

    Cause: no loss scale works: gradients overflow at any scale

    Points to: precision 4, schedule 1

    Next: Find the tensors whose gradient is infinite: `vario show '*' --quantity gradient --statistic infs`. Then check
    whether their activations grow.
    """
    if "skipped_step" not in step.scalars:
        return
    count = step.memory.get("skipped_updates", Streak).follow("skipped", step.was_skipped)
    if count >= steps and step.number > 20:
        text = f"the loss scaler has skipped {count} updates in a row"
        yield Finding(text, "scalar", "skipped_step", count, scope="global", strength=count)
