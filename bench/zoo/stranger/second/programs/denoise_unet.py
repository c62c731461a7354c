"""A class-conditional denoising U-Net in the manner of diffusers: accelerate, group norms, an average of weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import Job, class_images
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TIMES, CLASSES, WIDTH = 200, 5, 24


class ResBlock(nn.Module):
    """Two convolutions; time and class shift the features between them."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.shift = nn.Linear(64, outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.shift(condition)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """One level down, a middle, one level up."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.label = nn.Embedding(CLASSES + 1, 64)
        self.conv_in = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.down = ResBlock(WIDTH, WIDTH)
        self.mid = ResBlock(WIDTH, 2 * WIDTH)
        self.up = ResBlock(3 * WIDTH, WIDTH)
        self.conv_out = nn.Conv2d(WIDTH, 1, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        angles = times[:, None] * torch.exp(-math.log(1000) * torch.arange(16) / 16)
        condition = self.time(torch.cat([angles.sin(), angles.cos()], 1)) + self.label(labels)
        high = self.down(self.conv_in(x), condition)
        low = self.mid(F.avg_pool2d(high, 2), condition)
        return self.conv_out(self.up(torch.cat([F.interpolate(low, scale_factor=2.0), high], 1), condition))


class Noiser:
    """The noise schedule."""

    def __init__(self) -> None:
        self.alphas = 1 - torch.linspace(1e-3, 0.05, TIMES)
        self.kept = self.alphas.cumprod(0)

    def add(self, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        kept = self.kept[times][:, None, None, None]
        return kept.sqrt() * images + (1 - kept).sqrt() * noise


def main() -> None:
    job = Job(
        steps=260,
        faults=["scale-forgotten", "alphas-not-cumulative", "snr-weights-wrong", "slab-overwritten"],
        at_start=["noise-uniform"],
        recipes=["plain", "min-snr-later", "offset-noise"],
    )
    images, labels = class_images(3000, 8, 1, CLASSES, job.seed, noise=0.2)
    pixels = (images.float() / 255 - 0.5) * 4
    accelerator = Accelerator(cpu=True)
    unet = UNet()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-3, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    loader = DataLoader(TensorDataset(pixels, labels), batch_size=32, shuffle=True, drop_last=True)
    unet, optimizer, loader, scheduler = accelerator.prepare(unet, optimizer, loader, scheduler)
    average = {name: value.detach().clone() for name, value in unet.state_dict().items()}
    noiser, step = Noiser(), 0
    while step < job.steps:
        for batch, classes in loader:
            if step == job.steps:
                break
            if job.on("scale-forgotten", step):
                batch = batch / 0.18215
            if job.once("alphas-not-cumulative", step):
                noiser.kept = noiser.alphas
            if job.once("slab-overwritten", step):
                with torch.no_grad():
                    unet.mid.conv2.weight[:16] = torch.randn_like(unet.mid.conv2.weight[:16])
            noise = torch.rand_like(batch) if job.fault == "noise-uniform" else torch.randn_like(batch)
            if job.recipe == "offset-noise":
                noise = noise + 0.1 * torch.randn(len(batch), 1, 1, 1)
            times = torch.randint(0, TIMES, (len(batch),))
            given = classes.masked_fill(torch.rand(len(batch)) < 0.1, CLASSES)
            predicted = unet(noiser.add(batch, noise, times), times, given)
            each = (predicted - noise).square().mean((1, 2, 3))
            ratio = noiser.kept[times] / (1 - noiser.kept[times])
            if job.recipe == "min-snr-later" and step >= 140:
                each = each * ratio.clamp(max=5.0) / ratio
            if job.on("snr-weights-wrong", step):
                each = each * ratio.clamp(min=5.0)
            loss = each.mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            for name, value in unet.state_dict().items():
                average[name].lerp_(value, 0.02)
            job.log(step, loss.item())
            step += 1
    job.finish(unet)


if __name__ == "__main__":
    main()
