"""What the loss itself tells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.telling import WARM, compared
from vario.rules import Finding, Step, rule
from vario.text import number


@rule("relative", is_quiet=True, is_symptom=True)
def loss_spike(step: Step, threshold: float = 6.0, share: float = 0.05) -> Iterator[Finding]:
    """A loss far from its usual value, for one step.

    Why: the loss is the last to know; look for what came before it.

    Next: the alerts of the steps before.
    """
    for name in ("loss", "loss_local"):
        deviation = step.scalar_trend(name, linear=True, floor=1e-6)
        if deviation is None:
            continue
        off = float(deviation.distance[0])
        if deviation.age[0] >= WARM and abs(deviation.z[0]) > threshold and abs(off) > share * abs(deviation.usual[0]):
            yield Finding(
                f"{name} is {number(deviation.values[0])}, {compared(deviation, 0)}",
                "scalar",
                name,
                deviation.values[0],
                low=deviation.low(0),
                high=deviation.high(0),
                scope="batch",
                strength=abs(float(deviation.z[0])),
            )
        return


@rule("relative", is_symptom=True)
def loss_shift(step: Step, times: float = 4.0, share: float = 0.15) -> Iterator[Finding]:
    """A loss that has moved to another level and stays there.

    Why: when every layer looks as before and the loss does not, it is the batch or its labels that changed.

    Next: what the loader gives since then; the masks and weights of the loss.
    """
    for name in ("loss_local", "loss"):
        deviation = step.scalar_trend(name, linear=True, floor=1e-6)
        if deviation is None:
            continue
        gap, usual = float(deviation.gap[0]), float(deviation.usual_gap[0])
        size = abs(gap) / max(abs(float(deviation.usual[0])), 1e-12)
        # A loss that falls is what training is for: down it must fall much faster than it ever did.
        needed = times if gap > 0 else 2 * times
        is_off = abs(gap) > needed * usual and size > share and abs(deviation.z[0]) > 2
        if deviation.age[0] >= WARM and is_off:
            direction = "risen" if gap > 0 else "fallen"
            yield Finding(
                f"{name} has {direction} to {number(deviation.values[0])} and stays there, usually "
                f"{number(deviation.usual[0])}",
                "scalar",
                name,
                deviation.values[0],
                low=deviation.low(0),
                high=deviation.high(0),
                scope="batch",
                strength=float(np.log1p(size)),
            )
        return
