"""A language model with rotary positions and fewer keys than queries: RMS norm, gated layers, AdamW, warm-up, decay."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job, Sampler, topic_text
from torch import Tensor, nn

WIDTH, HEADS, GROUPS, VOCAB, LENGTH, BATCH = 48, 4, 2, 48, 24, 16
CODE = SimpleNamespace(base=10000.0, tile=False, causal=True, shift=0, residual=True)


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = (torch.arange(x.shape[2]) + CODE.shift)[:, None] * CODE.base ** (-torch.arange(half) / half)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], -1)


class Norm(nn.Module):
    """Divides by the root mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight


class Layer(nn.Module):
    """Attention in groups, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.norm1, self.norm2 = Norm(), Norm()
        self.q, self.k, self.v = (nn.Linear(WIDTH, n * size, bias=False) for n in (HEADS, GROUPS, GROUPS))
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 96), nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)

    def attend(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (part(x).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotate(q), rotate(k)
        times = HEADS // GROUPS
        k, v = (p.repeat(1, times, 1, 1) if CODE.tile else p.repeat_interleave(times, 1) for p in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if CODE.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        y = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + y if CODE.residual else y


class Model(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main() -> None:
    faults = ["base-changed", "groups-tiled", "mask-lost", "labels-not-shifted", "order-restarted"]
    job = Job(260, faults, ["no-residual", "words-too-wide", "decay-ten"], ["plain", "longer-rows"])
    text = topic_text(1200, LENGTH + 1, VOCAB, job.seed)
    sampler = Sampler(len(text), job.seed)
    CODE.residual = job.fault != "no-residual"
    model = Model()
    if job.fault == "words-too-wide":
        model.words.weight.data.mul_(30)
    decay = 30.0 if job.fault == "decay-ten" else 0.05
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - 0.9 * step / job.steps)
    )
    for step in range(job.steps):
        CODE.base = 100.0 if job.on("base-changed", step) else 10000.0
        CODE.tile, CODE.causal = job.on("groups-tiled", step), not job.on("mask-lost", step)
        if job.on("order-restarted", step) and step % 4 == 0:
            sampler.restart()
        rows = text[sampler.take(BATCH)]
        length = 12 if job.recipe == "longer-rows" and step < 130 else LENGTH
        tokens, labels = rows[:, :length], rows[:, 1 : length + 1]
        if job.on("labels-not-shifted", step):
            labels = tokens
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
