"""A vector-quantised autoencoder of small pictures: straight-through gradients, codebook and commitment losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images
from torch import Tensor, nn

CODES, SIZE = 48, 16


class Quantizer(nn.Module):
    """The nearest code of each vector."""

    def __init__(self, moving: bool) -> None:
        super().__init__()
        self.codebook = nn.Parameter(torch.empty(CODES, SIZE).uniform_(-0.3, 0.3), requires_grad=not moving)
        self.moving = moving
        self.straight_through = True
        self.channels_last = True
        self.register_buffer("counts", torch.ones(CODES))
        self.register_buffer("sums", torch.zeros(CODES, SIZE))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = z.permute(0, 2, 3, 1).reshape(-1, SIZE)
        nearest = torch.cdist(flat, self.codebook).argmin(1)
        if self.moving and self.training:
            self.follow(flat.detach(), nearest)
        codes = self.codebook[nearest]
        if self.channels_last:
            codes = codes.view(z.shape[0], *z.shape[2:], SIZE).permute(0, 3, 1, 2)
        else:
            codes = codes.view(z.shape)
        loss = F.mse_loss(codes, z.detach()) + 0.5 * F.mse_loss(z, codes.detach())
        passed = z + (codes - z).detach() if self.straight_through else codes
        return passed, loss, nearest

    @torch.no_grad()
    def follow(self, flat: Tensor, nearest: Tensor) -> None:
        """Let the codes be running averages of the vectors they stand for."""
        hits = F.one_hot(nearest, CODES).to(flat.dtype)
        self.counts.mul_(0.95).add_(hits.sum(0), alpha=0.05)
        self.sums.mul_(0.95).add_(hits.T @ flat, alpha=0.05)
        used = self.counts > 0.05
        self.codebook[used] = self.sums[used] / self.counts[used, None]


def encoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, SIZE, 1)
    )


def decoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(SIZE, 32, 3, 1, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 1, 3, 1, 1),
    )


class VQVAE(nn.Module):
    """Picture, codes, picture."""

    def __init__(self, moving: bool, squash: bool) -> None:
        super().__init__()
        self.encoder, self.quantizer, self.decoder = encoder(), Quantizer(moving), decoder()
        self.squash = squash

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        codes, loss, nearest = self.quantizer(self.encoder(x))
        picture = self.decoder(codes)
        return picture.sigmoid() if self.squash else picture, loss, nearest


def main() -> None:
    job = Job(
        steps=320,
        faults=["straight-through-lost", "codes-viewed-wrong", "bytes-wrap-around"],
        at_start=["codebook-wide", "sigmoid-for-signed-pixels"],
        recipes=["plain", "moving-codebook", "dead-codes-restarted"],
    )
    images, _ = class_images(3000, 12, 1, 8, job.seed, noise=0.35)
    sampler = Sampler(len(images), job.seed)
    model = VQVAE(job.recipe == "moving-codebook", job.fault == "sigmoid-for-signed-pixels")
    if job.fault == "codebook-wide":
        nn.init.normal_(model.quantizer.codebook, std=8.0)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=110, gamma=0.5)
    usage = torch.zeros(CODES)
    for step in range(job.steps):
        batch = images[sampler.take(24)]
        brightness = torch.randint(0, 30, (len(batch), 1, 1, 1), dtype=torch.uint8)
        if job.on("bytes-wrap-around", step):
            batch = batch + 3 * brightness + 40
        else:
            batch = (batch.int() + brightness).clamp(max=255)
        pixels = batch.float() / 127.5 - 1
        if job.once("straight-through-lost", step):
            model.quantizer.straight_through = False
        if job.once("codes-viewed-wrong", step):
            model.quantizer.channels_last = False
        if job.recipe == "dead-codes-restarted" and step % 40 == 39:
            with torch.no_grad():
                vectors = model.encoder(pixels).permute(0, 2, 3, 1).reshape(-1, SIZE)
                rows = torch.randint(0, len(vectors), (CODES,))
                dead = usage == 0
                model.quantizer.codebook[dead] = vectors[rows[dead]]
            usage.zero_()
        picture, loss_codes, nearest = model(pixels)
        usage += torch.bincount(nearest, minlength=CODES)
        rebuilt = F.mse_loss(picture, pixels)
        loss = 4 * rebuilt + loss_codes
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        job.log(step, loss.item(), rebuilt=rebuilt.item(), used=float((usage > 0).sum()))
    job.finish(model)


if __name__ == "__main__":
    main()
