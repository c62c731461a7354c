"""GPUs that are slowed down, and one that is slower than its peers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.machine_options import PREFIX
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last
from vario.rules.machine.lasting import gpus, lasts_seconds, slowed_share

BUSY_PERCENT = 50.0
MORE_POWER = 1.05
"""A GPU that draws this much more than its peers has more to do."""


@rule("limit", needs=PREFIX)
def throttled(step: Step, share: float = 0.5, seconds: float = 60.0) -> Iterator[Finding]:
    """A GPU whose clocks are lowered because of heat or its power supply, for at least a minute.

    Why: every rank waits for the slowest GPU. Reaching the power limit is not reported: large models do so all the
    time.

    Cause: insufficient cooling, or a power supply that limits the GPU

    Points to: hardware 3

    Next: Check the GPU's temperature with `vario show NAME` and the reasons with `nvidia-smi -q`, then
    the cooling and the power supply of that host.
    """
    for gpu, readings in gpus(step).items():
        slowed = slowed_share(readings)
        if "thermal_share" not in readings and "slowdown_share" not in readings:
            continue
        name = "thermal_share" if slowed == readings.get("thermal_share") else "slowdown_share"
        if lasts_seconds(step, "throttled", gpu, slowed >= share) >= seconds:
            why = "because of heat" if name == "thermal_share" else "by its power supply or the hardware itself"
            yield Finding(
                f"{gpu} is slowed down {why}{_state(readings)}",
                "scalar",
                f"{PREFIX}{gpu}/{name}",
                slowed,
                high=share,
                scope="global",
                strength=slowed,
                severity="note",
            )


@rule("relative", needs=PREFIX)
def slow_gpu(step: Step, share: float = 0.15, seconds: float = 300.0) -> Iterator[Finding]:
    """A GPU that runs at lower clocks than the other busy ones of its host, for at least five minutes.

    Why: every rank waits for the slowest GPU.

    Cause: a GPU in worse condition than its peers, or with lower limits

    Points to: hardware 3

    Next: Check clocks and power limits of the GPUs of that host with `nvidia-smi -q`.
    """
    every = gpus(step)
    _remember_tops(step, every)
    busy = {gpu: found for gpu, found in every.items() if found.get("utilization_percent", 0.0) >= BUSY_PERCENT}
    busy = {gpu: found for gpu, found in busy.items() if "sm_clock_mhz" in found}
    for gpu in [gpu for gpu, found in every.items() if "sm_clock_mhz" in found]:
        peers = [found for other, found in busy.items() if other != gpu and _top(step, other) == _top(step, gpu)]
        usual = float(np.median([found["sm_clock_mhz"] for found in peers])) if peers else 0.0
        clock = every[gpu]["sm_clock_mhz"]
        is_slow = gpu in busy and clock < (1 - share) * usual and slowed_share(every[gpu]) < 0.5
        is_slow = is_slow and not _has_more_to_do(every[gpu], peers)
        if lasts_seconds(step, "slow_gpu", gpu, is_slow) >= seconds:
            state = _state(every[gpu])
            yield Finding(
                f"{gpu} runs at {number(clock)} MHz, the other GPUs of its host at {number(usual)} MHz{state}",
                "scalar",
                f"{PREFIX}{gpu}/sm_clock_mhz",
                clock,
                low=(1 - share) * usual,
                scope="global",
                strength=float(np.log(usual / clock)) if clock > 0 else 1.0,
            )


def _has_more_to_do(readings: dict[str, float], peers: list[dict[str, float]]) -> bool:
    watts = [found["power_watts"] for found in peers if "power_watts" in found]
    return bool(watts) and readings.get("power_watts", 0.0) > MORE_POWER * float(np.median(watts))


def _remember_tops(step: Step, every: dict[str, dict[str, float]]) -> None:
    """The highest clocks of GPUs tell kinds of GPUs apart; they are recorded once."""
    for gpu, readings in every.items():
        if "sm_clock_top_mhz" in readings:
            step.memory.get("slow_gpu top", Last).swap_one(gpu, readings["sm_clock_top_mhz"], step.number)


def _top(step: Step, gpu: str) -> float:
    return float(np.nan_to_num(step.memory.get("slow_gpu top", Last).one("value", gpu)))


def _state(readings: dict[str, float]) -> str:
    known = (("temperature_celsius", "°C"), ("power_watts", "W"), ("sm_clock_mhz", "MHz"))
    found = [f"{number(readings[name], 3 if unit != 'MHz' else 4)} {unit}" for name, unit in known if name in readings]
    return f" ({', '.join(found)})" if found else ""
