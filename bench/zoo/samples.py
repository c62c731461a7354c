"""What the zoo's models learn from: text of a Markov chain, images of shapes, a table with a hidden rule.

A set is made once, from its seed; training draws rows without replacement, epoch after epoch, as a distributed
sampler does. So data is fresh unless a set is made small on purpose, and no row repeats by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from zoo.models import ANSWERS, CLASSES, FEATURES, LENGTH, VOCABULARY

PAD = 0
IGNORED = -100
TOPICS = 3
TASKS = {"mlp": "table", "cnn": "shapes", "rnn": "text", "transformer": "text", "moe": "text"}

Batch = dict[str, torch.Tensor]
"""`inputs` and `targets`; of text also `rows`, the tokens both were cut from."""


@dataclass(frozen=True)
class Samples:
    """All rows of a set: what goes in, and what should come out (text is both)."""

    inputs: torch.Tensor
    targets: torch.Tensor | None

    def batch(self, indices: np.ndarray) -> Batch:
        chosen = torch.from_numpy(indices)
        if self.targets is None:
            return cut_text(self.inputs[chosen])
        return {"inputs": self.inputs[chosen], "targets": self.targets[chosen]}


def cut_text(rows: torch.Tensor) -> Batch:
    """Inputs and next tokens of rows of text; what is padding does not count."""
    targets = rows[:, 1:].clone()
    targets[targets == PAD] = IGNORED
    return {"inputs": rows[:, :-1].contiguous(), "targets": targets, "rows": rows}


@lru_cache(maxsize=3)
def make_samples(task: str, seed: int, size: int, dialect: int = 0) -> Samples:
    """A set of `size` rows. Another dialect is the same task with another rule inside."""
    random = np.random.default_rng([seed, size])
    rule = np.random.default_rng([seed, dialect, 77])
    if task == "table":
        return _table(random, rule, size)
    return _shapes(random, size) if task == "shapes" else Samples(_text(random, rule, size), None)


def _text(random: np.random.Generator, rule: np.random.Generator, size: int) -> torch.Tensor:
    # The first token of a row says which of the chains it follows: who does not look back knows half of it.
    likely = np.stack(
        [[rule.permutation(np.arange(1, VOCABULARY))[:4] for _ in range(VOCABULARY)] for _ in range(TOPICS)]
    )
    cumulative = np.cumsum([0.6, 0.2, 0.15, 0.05])
    rows = np.empty((size, LENGTH + 1), np.int64)
    rows[:, 0] = topics = random.integers(1, TOPICS + 1, size)
    rows[:, 1] = random.integers(1, VOCABULARY, size)
    for place in range(2, LENGTH + 1):
        choice = np.searchsorted(cumulative, random.random(size) * 0.999999)
        rows[:, place] = likely[topics - 1, rows[:, place - 1], choice]
    lengths = random.integers(LENGTH // 2, LENGTH + 2, size)
    rows[np.arange(LENGTH + 1) >= lengths[:, None]] = PAD
    return torch.from_numpy(rows)


def _shapes(random: np.random.Generator, size: int) -> Samples:
    square, ring, cross = np.ones((5, 5)), np.ones((5, 5)), np.zeros((5, 5))
    ring[1:4, 1:4] = 0
    cross[2], cross[:, 2] = 1, 1
    across, down, slope = np.zeros((5, 5)), np.zeros((5, 5)), np.eye(5)
    across[1:3], down[:, 1:3] = 1, 1
    templates = np.stack([square, ring, cross, across, down, slope]).astype(np.float32)
    images = random.normal(0, 0.5, (size, 3, 12, 12)).astype(np.float32)
    kinds = random.integers(0, CLASSES, size)
    colours = random.uniform(0.3, 1.5, (size, 3)).astype(np.float32)
    places = random.integers(0, 8, (size, 2))
    for image, kind, colour, (top, left) in zip(images, kinds, colours, places, strict=True):
        image[:, top : top + 5, left : left + 5] += colour[:, None, None] * templates[kind]
    return Samples(torch.from_numpy(images), torch.from_numpy(kinds))


def _table(random: np.random.Generator, rule: np.random.Generator, size: int) -> Samples:
    first, second = rule.normal(0, 0.4, (FEATURES, 24)), rule.normal(0, 0.5, (24, ANSWERS))
    x = random.normal(0, 1, (size, FEATURES))
    y = np.tanh(x @ first) @ second + random.normal(0, 0.1, (size, ANSWERS))
    return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32)))


class Sampler:
    """Which rows come next, the same on all ranks; each takes its share."""

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size, self.epoch, self.place = seed, size, -1, size
        self.order = np.empty(0, np.int64)

    def take(self, count: int, rank: int, ranks: int) -> np.ndarray:
        if self.place + count * ranks > self.size:
            self.epoch, self.place = self.epoch + 1, 0
            self.order = np.random.default_rng([self.seed, self.epoch, 5]).permutation(self.size)
        taken = self.order[self.place + rank : self.place + count * ranks : ranks]
        self.place += count * ranks
        return taken
