"""Segmentation of shapes with a small U-Net under Lightning: cross-entropy and dice, mirroring, one-cycle rate."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, SIZE = 4, 16


def shapes(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy pictures of bars, discs and frames, and the class of each pixel."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    pictures, masks = [], []
    for _ in range(rows):
        a, b = torch.randint(3, SIZE - 3, (2,), generator=generator).tolist()
        c, d = torch.randint(3, SIZE - 3, (2,), generator=generator).tolist()
        mask = torch.zeros(SIZE, SIZE, dtype=torch.long)
        mask[((x - a).abs() < 6) & ((y - b).abs() < 2)] = 1
        mask[(x - c) ** 2 + (y - d) ** 2 < 9] = 2
        mask[((x - d).abs().maximum((y - a).abs())) == 3] = 3
        pictures.append((mask > 0) * 1.0 + 0.3 * (mask == 2) + 0.35 * torch.randn(SIZE, SIZE, generator=generator))
        masks.append(mask)
    return torch.stack(pictures)[:, None], torch.stack(masks)


def double(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.InstanceNorm2d(outside, affine=True),
        nn.LeakyReLU(0.1),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.LeakyReLU(0.1),
    )


class SegmentationNet(nn.Module):
    """Two levels down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.bottom = double(1, 16), double(16, 24), double(24, 32)
        self.dec2, self.dec1 = double(56, 24), double(40, 16)
        self.last = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.enc1(x)
        two = self.enc2(F.max_pool2d(one, 2))
        three = self.bottom(F.max_pool2d(two, 2))
        up = self.dec2(torch.cat([F.interpolate(three, scale_factor=2.0), two], 1))
        return self.last(self.dec1(torch.cat([F.interpolate(up, scale_factor=2.0), one], 1)))


def dice(logits: Tensor, masks: Tensor) -> Tensor:
    shares, truth = logits.softmax(1), F.one_hot(masks, CLASSES).permute(0, 3, 1, 2)
    both = (shares * truth).sum((0, 2, 3))
    return (2 * both / (shares.sum((0, 2, 3)) + truth.sum((0, 2, 3)) + 1)).mean()


class Segmenter(lightning.LightningModule):
    """The training step."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.net = SegmentationNet()

    def prepare(self, pictures: Tensor, masks: Tensor, step: int) -> tuple[Tensor, Tensor]:
        mirror = torch.rand(()) < 0.5
        if mirror:
            pictures = pictures.flip(-1)
        if mirror and not self.job.on("mask-not-mirrored", step):
            masks = masks.flip(-1)
        if self.job.on("masks-interpolated", step):
            small = F.interpolate(masks[:, None].float(), size=(5, 5), mode="bilinear", antialias=True)
            masks = F.interpolate(small, size=masks.shape[1:], mode="bilinear")[:, 0].round().long()
        if self.job.on("masks-not-found", step):
            masks = masks * (torch.rand(len(masks), 1, 1) < 0.2)
        if self.job.recipe == "larger-crops":
            side = 8 if step < 90 else 12 if step < 180 else SIZE
            top, left = torch.randint(0, SIZE - side + 1, (2,)).tolist()
            pictures, masks = (part[..., top : top + side, left : left + side] for part in (pictures, masks))
        return pictures, masks

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        step = self.global_step
        pictures, masks = self.prepare(batch[0], batch[1], step)
        logits = self.net(pictures)
        overlap = dice(logits, masks)
        term = overlap if self.job.on("dice-sign", step) else 1 - overlap
        loss = F.cross_entropy(logits, masks) + term
        self.log("loss", loss)
        self.job.log(step, loss.item(), dice=overlap.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=4e-3, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=self.job.steps, pct_start=0.2)
        interval = "epoch" if self.job.fault == "schedule-per-epoch" else "step"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}


def main() -> None:
    job = Job(
        steps=270,
        faults=["mask-not-mirrored", "masks-interpolated", "masks-not-found", "dice-sign"],
        at_start=["schedule-per-epoch"],
        recipes=["plain", "larger-crops"],
    )
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    loader = DataLoader(TensorDataset(*shapes(1200, job.seed)), batch_size=12, shuffle=True, drop_last=True)
    segmenter = Segmenter(job)
    trainer = lightning.Trainer(
        max_steps=job.steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(segmenter, loader)
    job.finish(segmenter.net)


if __name__ == "__main__":
    main()
