"""Momentum contrast on small pictures: a slow key encoder, a queue of keys, two views of each picture."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, normalised
from torch import Tensor, nn

SIZE, QUEUE, DIMENSIONS, BATCH = 16, 384, 32, 32


def encoder() -> nn.Sequential:
    """Pictures to vectors."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, 2, 1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, 2, 1, bias=False),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(192, 96),
        nn.ReLU(),
        nn.Linear(96, DIMENSIONS),
        nn.BatchNorm1d(DIMENSIONS, affine=False),
    )


def view(x: Tensor) -> Tensor:
    """A shifted, brightened, noisy copy."""
    shifts = torch.randint(-1, 2, (len(x), 2)).tolist()
    x = torch.stack([torch.roll(row, (a, b), dims=(1, 2)) for row, (a, b) in zip(x, shifts, strict=True)])
    x = x * (1 + 0.8 * (torch.rand(len(x), 1, 1, 1) - 0.5))
    x = x + 0.8 * (torch.rand(len(x), 1, 1, 1) - 0.5)
    return x + 0.2 * torch.randn_like(x)


class Queue:
    """The latest keys."""

    def __init__(self) -> None:
        self.keys = F.normalize(torch.randn(QUEUE, DIMENSIONS), dim=1)
        self.place = 0

    def add(self, keys: Tensor) -> None:
        self.keys = self.keys.clone()
        self.keys[self.place : self.place + len(keys)] = keys
        self.place = (self.place + len(keys)) % QUEUE


def main() -> None:
    job = Job(
        steps=300,
        faults=["views-the-same", "key-encoder-anew", "keys-not-put-back", "queue-of-raw-vectors"],
        at_start=["positive-at-the-end"],
        recipes=["plain", "temperature-falls"],
    )
    bytes_, _ = class_images(1500, SIZE, 1, 40, job.seed, noise=0.5)
    pictures = normalised(bytes_)
    sampler = Sampler(len(pictures), job.seed)
    query_encoder = encoder()
    key_encoder = copy.deepcopy(query_encoder).requires_grad_(False)
    queue = Queue()
    optimizer = torch.optim.SGD(query_encoder.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / (job.steps + 60)))
    )
    for step in range(job.steps):
        if job.once("key-encoder-anew", step):
            with torch.random.fork_rng():
                key_encoder = encoder().requires_grad_(False)
        rows = pictures[sampler.take(BATCH)]
        first = view(rows)
        second = view(rows)
        if job.on("views-the-same", step):
            second = first
        queries = F.normalize(query_encoder(first), dim=1)
        with torch.no_grad():
            for slow, fast in zip(key_encoder.parameters(), query_encoder.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
            mixed = torch.randperm(BATCH)
            vectors = key_encoder(second[mixed])
            if not job.on("keys-not-put-back", step):
                vectors = vectors[mixed.argsort()]
            keys = F.normalize(vectors, dim=1)
        positive = (queries * keys).sum(1, keepdim=True)
        negative = queries @ queue.keys.T
        temperature = 0.2
        if job.recipe == "temperature-falls":
            temperature = 0.3 - 0.2 * step / job.steps
        answer = torch.zeros(BATCH, dtype=torch.long)
        if job.fault == "positive-at-the-end":
            logits = torch.cat([negative, positive], dim=1)
        else:
            logits = torch.cat([positive, negative], dim=1)
        loss = F.cross_entropy(logits / temperature, answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        queue.add(vectors if job.on("queue-of-raw-vectors", step) else keys)
        job.log(step, loss.item(), near=positive.mean().item())
    job.finish(query_encoder)


if __name__ == "__main__":
    main()
