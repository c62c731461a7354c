"""A small U-Net outlines discs in noisy pictures: group norm, cross-entropy and dice, AdamW with a cosine."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

SIZE, BATCH = 24, 16
CODE = SimpleNamespace(skip=True, detach=False)


def block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU())


class UNet(nn.Module):
    """Two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = block(1, 16), block(16, 24), block(24, 32)
        self.up2, self.up1, self.drop = block(56, 24), block(40, 16), nn.Dropout2d(0.1)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.drop(self.middle(F.max_pool2d(second, 2)))
        if CODE.detach:
            second = second.detach()
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2.0), second], 1))
        if not CODE.skip:
            first = torch.zeros_like(first)
        return self.out(self.up1(torch.cat([F.interpolate(x, scale_factor=2.0), first], 1)))


def scenes(rows: int) -> tuple[Tensor, Tensor]:
    """Discs on noise, and where they are."""
    place = torch.arange(SIZE).float()
    centre = 6 + 12 * torch.rand(rows, 2, 1, 1)
    radius = 3 + 3 * torch.rand(rows, 1, 1)
    mask = ((place[:, None] - centre[:, 0]) ** 2 + (place - centre[:, 1]) ** 2 < radius**2).float()
    bright = 0.5 + torch.rand(rows, 1, 1)
    return (mask * bright + 0.5 * torch.randn(rows, SIZE, SIZE) + 0.4)[:, None], mask[:, None]


def main() -> None:
    faults = ["skip-zeroed", "masks-mirrored", "dice-smooth", "brightness-shifted", "level-detached"]
    job = Job(260, faults, ["rate-too-high", "masks-of-others"], ["plain", "dice-later"])
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3 if job.fault == "rate-too-high" else 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps)
    for step in range(job.steps):
        CODE.skip, CODE.detach = not job.on("skip-zeroed", step), job.on("level-detached", step)
        pictures, masks = scenes(BATCH)
        if job.on("masks-mirrored", step):
            masks = masks.flip(3)
        if job.fault == "masks-of-others":
            masks = masks.roll(1, 0)
        if job.on("brightness-shifted", step):
            pictures = pictures - 0.4
        logits = model((pictures - 0.5) / 0.6)
        smooth = 3000.0 if job.on("dice-smooth", step) else 1.0
        likely = logits.sigmoid()
        dice = 1 - (2 * (likely * masks).sum() + smooth) / (likely.sum() + masks.sum() + smooth)
        weight = 0.0 if job.recipe == "dice-later" and step < 130 else 0.5
        loss = F.binary_cross_entropy_with_logits(logits, masks) + weight * dice
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
