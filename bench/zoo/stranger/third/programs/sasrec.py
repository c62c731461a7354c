"""What somebody picks next: causal attention over past picks, sampled softmax, a sparse table of items, workers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

ITEMS, GENRES, LENGTH, WIDTH, HEADS, NEGATIVES, BATCH, PAD = 241, 12, 16, 32, 2, 24, 32, 0


def histories(rows: int, seed: int) -> list[list[int]]:
    """Picks of people: mostly what often follows the last pick, sometimes something popular."""
    generator = np.random.default_rng(seed)
    follows = generator.integers(1, ITEMS, size=(ITEMS, 2))
    popular = 1.0 / np.arange(1, ITEMS) ** 0.7
    popular /= popular.sum()
    found = []
    for _ in range(rows):
        picks = [int(generator.choice(ITEMS - 1, p=popular)) + 1]
        for draw in generator.random(int(generator.integers(8, LENGTH + 1))):
            if draw < 0.75:
                picks.append(int(follows[picks[-1], int(draw < 0.25)]))
            else:
                picks.append(int(generator.choice(ITEMS - 1, p=popular)) + 1)
        found.append(picks)
    return found


class Picks(Dataset):
    """For each history the picks before, the next ones, and picks of other people as negatives."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rows = histories(3000, job.seed)
        counts = np.bincount([pick for row in self.rows for pick in row], minlength=ITEMS) + 1.0
        counts[PAD] = 0
        self.share = counts / counts.sum()
        self.summed = self.share.cumsum()

    def __getitem__(self, index: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        step, row = index
        job, picks = self.job, self.rows[row]
        before, after = picks[:-1], picks[1:]
        if job.on("newest-first", step):
            before = before[::-1]
        seed = (job.seed, 0, 0) if job.on("workers-alike", step) else (job.seed, step + 1, row)
        draws = np.random.default_rng(seed).random(NEGATIVES)
        negatives = np.minimum(np.searchsorted(self.summed, draws), ITEMS - 1)
        fill = [PAD] * (LENGTH - len(before))
        return torch.tensor(fill + before), torch.tensor(fill + after), torch.from_numpy(negatives)


class Batches(Sampler):
    """Shuffled rows with the number of the batch."""

    def __init__(self, rows: int, job: Job) -> None:
        self.rows, self.job = rows, job

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        generator = torch.Generator().manual_seed(self.job.seed)
        order = torch.cat([torch.randperm(self.rows, generator=generator) for _ in range(4)]).tolist()
        for step in range(self.job.steps):
            yield [(step, row) for row in order[step * BATCH : (step + 1) * BATCH]]


class Attention(nn.Module):
    """Looks back, never at padding."""

    def __init__(self, look_at_self: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.look_at_self = look_at_self

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (part(x).view(rows, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        seen = torch.ones(length, length, dtype=torch.bool).tril() & real[:, None, None, :]
        if self.look_at_self:
            seen = seen | torch.eye(length, dtype=torch.bool)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).masked_fill(~seen, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, WIDTH))


class SASRec(nn.Module):
    """Past picks to vectors that are near the next pick's."""

    def __init__(self, look_at_self: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=PAD, sparse=True)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.attentions = nn.ModuleList(Attention(look_at_self) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, WIDTH)) for _ in range(2)
        )
        self.last = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.items.weight[1:].normal_(std=0.1)
            self.positions.weight.normal_(std=0.1)

    def forward(self, picks: Tensor) -> Tensor:
        real = picks != PAD
        x = self.items(picks) * WIDTH**0.5 + self.positions.weight
        for number in range(2):
            x = x + self.attentions[number](self.norms[2 * number](x), real)
            x = x + self.mlps[number](self.norms[2 * number + 1](x))
        return self.last(x)


def main() -> None:
    job = Job(
        steps=280,
        faults=["workers-alike", "newest-first", "correction-sign"],
        at_start=["padding-sees-nothing"],
        recipes=["plain", "harder-negatives-later", "more-negatives-of-batch"],
    )
    data = Picks(job)
    loader = DataLoader(data, batch_sampler=Batches(3000, job), num_workers=2)
    likely = torch.from_numpy(data.share).float().clamp(min=1e-9).log()
    model = SASRec(look_at_self=job.fault != "padding-sees-nothing")
    dense = [p for name, p in model.named_parameters() if name != "items.weight"]
    sparse_optimizer = torch.optim.SparseAdam([model.items.weight], lr=8e-3)
    dense_optimizer = torch.optim.AdamW(dense, lr=4e-3, weight_decay=0.01)
    for step, (before, after, negatives) in enumerate(loader):
        real = after != PAD
        vectors = model(before)[real]
        others = negatives[:, None].expand(-1, LENGTH, -1)[real]
        if job.recipe == "more-negatives-of-batch":
            others = torch.cat([others, negatives[:, :2].flatten().expand(len(others), -1)], dim=1)
        asked = torch.cat([after[real][:, None], others], dim=1)
        scores = (model.items(asked) @ vectors[..., None]).squeeze(2)
        correction = -likely[asked] if not job.on("correction-sign", step) else likely[asked]
        scores = scores + correction
        twice = asked[:, 1:] == asked[:, :1]
        scores = torch.cat([scores[:, :1], scores[:, 1:].masked_fill(twice, -1e4)], dim=1)
        if job.recipe == "harder-negatives-later" and step >= 140:
            scores = torch.cat([scores[:, :1], scores[:, 1:].topk(12, dim=1).values], dim=1)
        loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
        sparse_optimizer.zero_grad()
        dense_optimizer.zero_grad()
        loss.backward()
        sparse_optimizer.step()
        dense_optimizer.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
