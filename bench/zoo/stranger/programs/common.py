"""Arguments, seeds and toy data that the programs share."""

from __future__ import annotations

import argparse
import math
import random
import sys
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

HEALTHY = "none"


def begin_step(seed: int, fault: str, steps: int) -> int:
    """Draw the step at which a fault begins: between 40 % and 70 % of the run."""
    draw = random.Random(seed * 1_000_003 + zlib.crc32(fault.encode()))
    return draw.randint(math.ceil(0.4 * steps), int(0.7 * steps))


class Job:
    """What one run of a program is asked to do."""

    def __init__(
        self,
        steps: int,
        faults: Sequence[str] = (),
        at_start: Sequence[str] = (),
        recipes: Sequence[str] = (),
    ) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--fault", choices=[HEALTHY, *faults, *at_start], default=HEALTHY)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--steps", type=int, default=steps)
        if recipes:
            parser.add_argument("--recipe", choices=list(recipes), default=recipes[0])
        options = parser.parse_args()
        self.fault: str = options.fault
        self.seed: int = options.seed
        self.steps: int = options.steps
        self.recipe: str = getattr(options, "recipe", "")
        self.begin = self.steps + 1
        if self.fault in at_start:
            self.begin = 0
        elif self.fault != HEALTHY:
            self.begin = begin_step(self.seed, self.fault, self.steps)
        if self.fault != HEALTHY:
            print(f"FAULT_STEP {self.begin}", file=sys.stderr, flush=True)
        torch.set_num_threads(1)
        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)

    def on(self, fault: str, step: int) -> bool:
        """Whether the fault is there at this step."""
        return self.fault == fault and step >= self.begin

    def once(self, fault: str, step: int) -> bool:
        """Whether the fault happens at exactly this step."""
        return self.fault == fault and step == self.begin

    def log(self, step: int, loss: float | Tensor, **more: float) -> None:
        """Print one line per step."""
        rest = "".join(f" {name} {value!r}" for name, value in more.items())
        print(f"step {step} loss {float(loss)!r}{rest}")

    def finish(self, *models: nn.Module) -> None:
        """Print one number for all weights."""
        total = sum(float(p.detach().double().abs().sum()) for model in models for p in model.parameters())
        print(f"weights {total!r}", flush=True)


class Sampler:
    """Row numbers of shuffled epochs, forever."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows = rows
        self.seed = seed
        self.restart()

    def restart(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.left = torch.empty(0, dtype=torch.long)

    def take(self, count: int) -> Tensor:
        while len(self.left) < count:
            self.left = torch.cat([self.left, torch.randperm(self.rows, generator=self.generator)])
        taken, self.left = self.left[:count], self.left[count:]
        return taken


def topic_text(rows: int, length: int, vocab: int, seed: int, topics: int = 4, reserved: int = 4) -> Tensor:
    """Sequences whose first token names a topic, and each topic has a bigram table of its own."""
    generator = torch.Generator().manual_seed(seed)
    words = vocab - reserved
    successors = torch.randint(0, words, (topics, words, 3), generator=generator)
    topic = torch.randint(0, topics, (rows,), generator=generator)
    tokens = [topic, torch.randint(0, words, (rows,), generator=generator)]
    for _ in range(length - 2):
        choice = torch.multinomial(torch.tensor([0.75, 0.15, 0.1]), rows, replacement=True, generator=generator)
        tokens.append(successors[topic, tokens[-1], choice])
    return torch.stack(tokens, dim=1) + reserved


def class_images(
    rows: int, size: int, channels: int, classes: int, seed: int, noise: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Bytes of noisy, shifted images of smooth class templates, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(classes, channels, 4, 4, generator=generator)
    templates = nn.functional.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    images = templates[labels] + noise * torch.randn(rows, channels, size, size, generator=generator)
    shifts = torch.randint(-2, 3, (rows,), generator=generator).tolist()
    images = torch.stack([torch.roll(image, shift, dims=-1) for image, shift in zip(images, shifts, strict=True)])
    wrong = torch.rand(rows, generator=generator) < 0.04
    labels[wrong] = torch.randint(0, classes, (int(wrong.sum()),), generator=generator)
    return ((images * 40 + 128).clamp(0, 255)).to(torch.uint8), labels


def normalised(images: Tensor) -> Tensor:
    """Bytes to numbers around zero."""
    return (images.float() / 255 - 0.5) / 0.25


def flip_bit(tensor: Tensor, index: int, bit: int) -> None:
    """Flip one bit of one float32 element, as a memory error does."""
    flat = tensor.detach().view(-1)
    number = np.array([flat[index].item()], dtype=np.float32)
    number.view(np.uint32)[0] ^= np.uint32(1 << bit)
    with torch.no_grad():
        flat[index] = float(number[0])
