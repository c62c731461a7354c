"""Gradients that accumulate because they are not zeroed."""

from __future__ import annotations

from collections.abc import Iterator

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak


@rule("exact", needs="gradient_left_over", stage="backward")
def not_zeroed(step: Step, steps: int = 3) -> Iterator[Finding]:
    """Gradients of the previous update that were not zeroed.

    Why: each update then uses the sum of all gradients so far, an accidental momentum that never decays. Clipping and
    Adam hide it from every norm.

    Cause: zero_grad is skipped, so gradients accumulate across updates

    Points to: loop 5

    Next: Call `optimizer.zero_grad()` once per update, and check that no branch skips it.
    """
    left = step.scalars.get("gradient_left_over")
    if left is None:
        return
    count = step.memory.get("not_zeroed", Streak).follow("gradient", left > 0)
    if count >= steps:
        yield Finding(
            f"gradients still contain {number(left)} from the previous update, {count} steps in a row",
            "scalar",
            "gradient_left_over",
            left,
            high=0.0,
            scope="global",
            strength=1.0,
            since=step.number - count + 1,
        )
