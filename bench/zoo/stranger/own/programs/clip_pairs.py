"""Pictures and captions side by side: two towers, a learned temperature, both directions, AdamW in groups."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

BATCH, WORDS, TOPICS = 48, 40, 24
CODE = SimpleNamespace(normalise=True)


class Towers(nn.Module):
    """Vectors of pictures and of captions."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 24))
        self.words, self.caption = (
            nn.Embedding(WORDS, 32),
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 24)),
        )
        self.scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, pictures: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        one, other = self.picture(pictures), self.caption(self.words(captions).mean(1))
        if not CODE.normalise:
            return F.normalize(one, dim=1), other
        return F.normalize(one, dim=1), F.normalize(other, dim=1)


def main() -> None:
    faults = ["captions-rolled", "one-way-only", "caption-side-detached", "not-normalised", "captions-cut"]
    job = Job(280, faults, ["scale-a-hundredth", "pairs-never-match"], ["plain", "smoothing-later"])
    generator = torch.Generator().manual_seed(job.seed)
    looks, vocabulary = (
        torch.randn(TOPICS, 32, generator=generator),
        torch.randint(0, WORDS, (TOPICS, 6), generator=generator),
    )
    model = Towers()
    if job.fault == "scale-a-hundredth":
        model.scale.data.fill_(-4.6)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], 1e-3
    )
    for step in range(job.steps):
        CODE.normalise = not job.on("not-normalised", step)
        topics = torch.randint(0, TOPICS, (BATCH,))
        pictures = looks[topics] + 0.8 * torch.randn(BATCH, 32)
        captions = vocabulary[topics]
        swap = torch.rand(BATCH, 6) < 0.25
        captions = torch.where(swap, torch.randint(0, WORDS, (BATCH, 6)), captions)
        if job.on("captions-rolled", step):
            captions = captions.roll(1, 0)
        if job.on("captions-cut", step):
            captions = captions[:, :1]
        if job.fault == "pairs-never-match":
            captions = captions[torch.randperm(BATCH)]
        one, other = model(pictures, captions)
        if job.on("caption-side-detached", step):
            other = other.detach()
        logits = model.scale.clamp(max=4.6).exp() * one @ other.T
        truth = torch.arange(BATCH)
        smoothing = 0.1 if job.recipe == "smoothing-later" and step >= 140 else 0.0
        loss = F.cross_entropy(logits, truth, label_smoothing=smoothing)
        if not job.on("one-way-only", step):
            loss = (loss + F.cross_entropy(logits.T, truth, label_smoothing=smoothing)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
