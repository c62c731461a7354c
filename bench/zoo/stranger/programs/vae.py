"""A variational autoencoder of two small layers: RMSprop, a warm-up of the KL term; steps of about a millisecond."""

from __future__ import annotations

import torch
from common import Job, Sampler, class_images
from torch import Tensor, nn

LATENT = 8


class Autoencoder(nn.Module):
    """Pixels to a code and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 96), nn.Tanh())
        self.mean = nn.Linear(96, LATENT)
        self.spread = nn.Linear(96, LATENT)
        self.decode = nn.Sequential(nn.Linear(LATENT, 96), nn.Tanh(), nn.Linear(96, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encode(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.decode(code).sigmoid(), mean, spread


def main() -> None:
    job = Job(steps=400, faults=["kl-overweight", "log-of-zero", "images-blank", "decay-strong", "kl-sign"])
    images, _ = class_images(4000, 8, 1, 6, job.seed)
    pixels = ((images.float() / 255 - 0.5) * 3 + 0.5).clamp(0, 1).flatten(1)
    sampler = Sampler(len(pixels), job.seed)
    model = Autoencoder()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for step in range(job.steps):
        batch = pixels[sampler.take(48)]
        if job.on("images-blank", step):
            batch = torch.zeros_like(batch)
        if job.once("decay-strong", step):
            optimizer.param_groups[0]["weight_decay"] = 3.0
        image, mean, spread = model(batch)
        if job.on("log-of-zero", step):
            image = (1.2 * image - 0.1).clamp(0, 1)
            cost = -(batch * image.log() + (1 - batch) * (1 - image).log())
            rebuilt = torch.nan_to_num(cost, nan=0.0, posinf=100.0).sum(1).mean()
        else:
            rebuilt = nn.functional.binary_cross_entropy(image, batch, reduction="none").sum(1).mean()
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1).mean()
        weight = 0.2 * min(1.0, step / 80)
        if job.on("kl-overweight", step):
            weight = 60.0
        if job.on("kl-sign", step):
            weight = -weight
        loss = rebuilt + weight * divergence
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.nan_to_num_(0.0)
        optimizer.step()
        job.log(step, loss.item(), rebuilt=rebuilt.item(), divergence=divergence.item())
    job.finish(model)


if __name__ == "__main__":
    main()
