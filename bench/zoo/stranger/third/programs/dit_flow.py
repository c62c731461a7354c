"""Rectified flow with a diffusion transformer: classes dropped for guidance, modulated norms, averaged weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import Job, class_images
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_constant_schedule_with_warmup

SIZE, PATCH, WIDTH, HEADS, CLASSES = 12, 3, 64, 4, 6


def time_features(t: Tensor, size: int = 32) -> Tensor:
    rates = torch.exp(-math.log(10000) * torch.arange(size // 2) / (size // 2))
    angles = t[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Block(nn.Module):
    """Attention and MLP whose norms are shifted, scaled and gated by time and class."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU("tanh"), nn.Linear(128, WIDTH))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, dim=-1)
        y = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(y, y, y, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    """Noisy pictures, times and classes to velocities."""

    def __init__(self) -> None:
        super().__init__()
        side = SIZE // PATCH
        self.patches = nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(0.1 * torch.randn(side * side, WIDTH))
        self.time = nn.Sequential(nn.Linear(32, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.classes = nn.Embedding(CLASSES + 1, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(WIDTH, PATCH * PATCH)
        nn.init.normal_(self.classes.weight, std=0.3)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, t: Tensor, classes: Tensor) -> Tensor:
        condition = self.time(time_features(t)) + self.classes(classes)
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            tokens = block(tokens, condition)
        return F.fold(self.last(tokens).transpose(1, 2), (SIZE, SIZE), PATCH, stride=PATCH)


def main() -> None:
    job = Job(
        steps=260,
        faults=["velocity-sign", "time-not-scaled", "classes-always-dropped", "moments-in-half"],
        recipes=["plain", "larger-batch-late"],
    )
    bytes_, labels = class_images(2600, SIZE, 1, CLASSES, job.seed, noise=0.15)
    pictures = (bytes_.float() / 255 - 0.5) / 0.18
    accelerator = Accelerator(cpu=True)
    model = DiT()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = get_constant_schedule_with_warmup(optimizer, 20)
    loader = DataLoader(TensorDataset(pictures, labels), batch_size=24, shuffle=True, drop_last=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    batches = iter(loader)
    for step in range(job.steps):
        if job.once("moments-in-half", step):
            for state in optimizer.state.values():
                state["exp_avg_sq"].copy_(state["exp_avg_sq"].half())
        taken = []
        for _ in range(2 if job.recipe == "larger-batch-late" and step >= 130 else 1):
            found = next(batches, None)
            if found is None:
                batches = iter(loader)
                found = next(batches)
            taken.append(found)
        x, classes = (torch.cat(part) for part in zip(*taken, strict=True))
        share = 10.0 if job.on("classes-always-dropped", step) else 0.1
        classes = torch.where(torch.rand(len(classes)) < share, CLASSES, classes)
        noise = torch.randn_like(x)
        t = torch.rand(len(x))
        mixed = torch.lerp(x, noise, t.view(-1, 1, 1, 1))
        velocity = x - noise if job.on("velocity-sign", step) else noise - x
        found = model(mixed, t if job.on("time-not-scaled", step) else 1000 * t, classes)
        loss = (found - velocity).square().mean()
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        averaged.update_parameters(accelerator.unwrap_model(model))
        job.log(step, loss.item(), norm=float(norm))
    job.finish(accelerator.unwrap_model(model), averaged)


if __name__ == "__main__":
    main()
