"""A denoising diffusion model with a small U-Net: Adam without a schedule, long steps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, normalised
from torch import Tensor, nn

TIMES = 100


class Stage(nn.Module):
    """Two convolutions with group norm; the time enters between them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, outputs)
        self.time = nn.Linear(64, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, outputs)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = F.silu(self.norm1(self.conv1(x))) + self.time(time)[:, :, None, None]
        return F.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    """Three resolutions with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.down1 = Stage(1, 24)
        self.down2 = Stage(24, 48)
        self.middle = Stage(48, 48)
        self.up2 = Stage(96, 24)
        self.up1 = Stage(48, 24)
        self.out = nn.Conv2d(24, 1, 1)
        self.skip = 1.0

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(1000) * torch.arange(16) / 16)
        angles = times[:, None].float() * frequencies
        time = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
        first = self.down1(x, time)
        second = self.down2(F.avg_pool2d(first, 2), time)
        y = self.middle(F.avg_pool2d(second, 2), time)
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2.0), second], dim=1), time)
        y = self.up1(torch.cat([F.interpolate(y, scale_factor=2.0), first * self.skip], dim=1), time)
        return self.out(y)


def main() -> None:
    job = Job(steps=240, faults=["time-constant", "target-image", "noise-reused", "skip-lost", "noise-too-strong"])
    images, _ = class_images(3000, 16, 1, 6, job.seed)
    sampler = Sampler(len(images), job.seed)
    kept = torch.cos(torch.linspace(0.02, math.pi / 2 - 0.02, TIMES)) ** 2
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    average = [p.detach().clone() for p in model.parameters()]
    for step in range(job.steps):
        clean = normalised(images[sampler.take(24)])
        times = torch.randint(0, TIMES, (len(clean),))
        if job.on("noise-reused", step):
            torch.manual_seed(job.seed)
        noise = torch.randn_like(clean)
        share = kept[times][:, None, None, None]
        if job.on("noise-too-strong", step):
            share = share.square().square()
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        if job.on("skip-lost", step):
            model.skip = 0.0
        told = torch.zeros_like(times) if job.on("time-constant", step) else times
        target = clean if job.on("target-image", step) else noise
        loss = F.mse_loss(model(noisy, told), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(average, model.parameters(), strict=True):
                mean.lerp_(weight, 0.01)
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
