"""Pictures and captions in one space: two towers, a learned scale, symmetric contrastive loss, bf16 autocast."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

LATENT, WORDS, LENGTH, SPACE = 5, 6, 5, 32


class PictureTower(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 2, 1)
        self.conv2 = nn.Conv2d(16, 32, 3, 2, 1)
        self.norm = nn.LayerNorm(32 * 9)
        self.proj = nn.Linear(32 * 9, SPACE)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.norm(F.gelu(self.conv2(F.gelu(self.conv1(x)))).flatten(1)))


class CaptionTower(nn.Module):
    """A one-layer transformer, pooled over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS * LATENT + 1, 48)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, 48))
        self.layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.proj = nn.Linear(48, SPACE)

    def forward(self, captions: Tensor) -> Tensor:
        return self.proj(self.layer(self.words(captions) + self.places).mean(1))


class TwoTowers(nn.Module):
    """Both towers and the scale of their products."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.caption = PictureTower(), CaptionTower()
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))
        self.unit_pictures = True

    def forward(self, pictures: Tensor, captions: Tensor) -> Tensor:
        image = self.picture(pictures)
        if self.unit_pictures:
            image = F.normalize(image, dim=-1)
        return image @ F.normalize(self.caption(captions), dim=-1).T


def contrastive(similarity: Tensor, scale: Tensor, targets: Tensor) -> Tensor:
    logits = similarity.float() * scale
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def main() -> None:
    job = Job(
        steps=260,
        faults=["captions-generic", "features-not-unit", "targets-of-another-rank", "scale-reset"],
        at_start=["scale-inverted"],
        recipes=["plain", "locked-pictures", "larger-batch-late"],
    )
    model = TwoTowers()
    generator = torch.Generator().manual_seed(job.seed)
    basis = torch.randn(LATENT, 144, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2e-3, total_steps=job.steps, pct_start=0.1, cycle_momentum=False
    )
    if job.recipe == "locked-pictures":
        model.picture.requires_grad_(False)
    for step in range(job.steps):
        if job.recipe == "locked-pictures" and step == 80:
            model.picture.requires_grad_(True)
        size = 96 if job.recipe == "larger-batch-late" and step >= 130 else 48
        meaning = torch.rand(size, LATENT, generator=generator)
        noise = torch.randn(size, 144, generator=generator)
        pictures = ((meaning - 0.5) * 3 @ basis + 0.3 * noise).view(size, 1, 12, 12)
        captions = (meaning * WORDS).long() + torch.arange(LATENT) * WORDS
        if job.on("captions-generic", step):
            generic = torch.rand(size, 1) < 0.7
            captions = torch.where(generic, WORDS * LATENT, captions)
        if job.once("features-not-unit", step):
            model.unit_pictures = False
        if job.once("scale-reset", step):
            with torch.no_grad():
                model.scale.zero_()
        targets = torch.arange(size)
        if job.on("targets-of-another-rank", step):
            targets = (targets + size // 2) % size
        with torch.autocast("cpu", dtype=torch.bfloat16):
            similarity = model(pictures, captions)
        scale = model.scale.exp()
        loss = contrastive(similarity, 1 / scale if job.fault == "scale-inverted" else scale, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.scale.clamp_(-math.log(100), math.log(100))
        hits = (similarity.argmax(1) == torch.arange(size)).float().mean()
        job.log(step, loss.item(), hits=hits.item(), scale=scale.item())
    job.finish(model)


if __name__ == "__main__":
    main()
