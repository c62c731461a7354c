"""Made-up steps for rules: a healthy course of any series, and one that something happens to."""

import numpy as np

from vario.core.records import Frame
from vario.rules import choose
from vario.rules.api.detector import Detector
from vario.rules.api.incidents import collect
from vario.rules.api.series_state import Memory
from vario.rules.api.step_view import Facts, RanksStep, Step

PARAMETERS = tuple(f"layers.{number}.{part}.weight" for number in range(4) for part in ("attn", "mlp"))
BIASES = tuple(f"layers.{number}.mlp.bias" for number in range(4))
COUNT = 4096


def summary(rms=1.0, count=COUNT, mean=0.0, nans=0, infs=0, zeros=0.0, low=None, high=None):
    """One row: a tensor of that size and spread."""
    top = 4 * rms if high is None else high
    bottom = -4 * rms if low is None else low
    return [count, mean * count, rms * rms * count, bottom, top, nans, infs, zeros * count]


def number_row(value):
    """A row of one number."""
    return [1, value, value * value, value, value, 0, 0, float(value == 0)]


def frame(quantity, step, rows, micro_step=0):
    """A frame of named rows, observed in that order."""
    return Frame(
        quantity,
        step,
        micro_step,
        tuple(rows),
        np.arange(len(rows), dtype=np.int32),
        np.array(list(rows.values()), dtype=np.float64),
    )


class Course:
    """Feeds steps to all rules, or to the ones named, and keeps what they say."""

    def __init__(self, rules=None, ranks=1, seed=0, dtype="float32"):
        self.noise = np.random.default_rng(seed)
        self.chosen = choose(rules)
        self.ranks = ranks
        names = (*PARAMETERS, *BIASES)
        self.facts = [
            Facts(
                rank=rank,
                world_size=ranks,
                shapes={name: (64, 64) if name in PARAMETERS else (64,) for name in names},
                dtypes=dict.fromkeys(names, dtype),
                trainable=frozenset(names),
            )
            for rank in range(ranks)
        ]
        self.memories = [Memory() for _ in range(ranks)]
        self.shared = Memory()
        self.detectors = [Detector(self.chosen) for _ in range(ranks)]
        self.together = Detector(self.chosen, over="ranks")
        self.number = 0
        self.alerts = []

    def size(self, spread=0.1):
        """A healthy size: about one."""
        return float(np.exp(self.noise.normal(0, spread)))

    def healthy(self, quantity, names, spread=0.1, **options):
        """A frame of healthy rows."""
        return {name: summary(self.size(spread), **options) for name in names}

    def step(self, *frames, scalars=None):
        """One step, the same on all ranks: frames are (quantity, rows)."""
        return self.step_of_ranks([frames] * self.ranks, [scalars or {}] * self.ranks)

    def step_of_ranks(self, frames, scalars, time=None, gone=()):
        """One step of each rank but those that are gone; it takes a second, unless `time` says when it ended."""
        steps = {
            rank: Step(
                self.number,
                float(self.number) if time is None else time,
                scalars[rank],
                [frame(quantity, self.number, rows) for quantity, rows in frames[rank]],
                self.facts[rank],
                self.memories[rank],
            )
            for rank in range(self.ranks)
            if rank not in gone
        }
        found = []
        for rank, step in steps.items():
            found += self.detectors[rank].see(step, rank if self.ranks > 1 else None)
        if self.ranks > 1:
            alike = lambda target, rank: list(range(self.ranks))  # noqa: E731
            found += self.together.see(RanksStep(self.number, steps, self.shared, alike), None)
        self.number += 1
        self.alerts += found
        return found

    def incidents(self):
        """What the alerts so far come to."""
        return collect(self.alerts, {found.rule.name: found.rule for found in self.chosen})[1]
