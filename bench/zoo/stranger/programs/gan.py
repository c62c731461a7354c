"""A convolutional GAN on synthetic images; the two networks take turns, one update each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, normalised
from torch import nn

NOISE = 24


class Generator(nn.Sequential):
    """Noise to images."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(NOISE, 64 * 16),
            nn.Unflatten(1, (64, 4, 4)),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
        )


class Critic(nn.Sequential):
    """Images to how real they look."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 24, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(24, 48, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(48 * 16, 1),
        )


def main() -> None:
    job = Job(
        steps=320,
        faults=["labels-swapped", "critic-not-zeroed", "critic-idle", "real-blank", "noise-fixed"],
    )
    images, _ = class_images(3000, 16, 1, 4, job.seed)
    sampler = Sampler(len(images), job.seed)
    generator, critic = Generator(), Critic()
    make_steps = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judge_steps = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.5, 0.999))
    ones, zeros = torch.full((32, 1), 0.9), torch.zeros(32, 1)
    fixed = torch.randn(32, NOISE)
    for step in range(job.steps):
        real = normalised(images[sampler.take(32)])
        noise = torch.randn(32, NOISE)
        if job.on("real-blank", step):
            real = torch.zeros_like(real)
        if job.on("noise-fixed", step):
            noise = fixed
        fake = generator(noise)
        right, wrong = (zeros, ones) if job.on("labels-swapped", step) else (ones, zeros)
        judged = F.binary_cross_entropy_with_logits(critic(real), right)
        judged = judged + F.binary_cross_entropy_with_logits(critic(fake.detach()), wrong)
        if not job.on("critic-not-zeroed", step):
            judge_steps.zero_grad()
        judged.backward()
        if not job.on("critic-idle", step):
            judge_steps.step()
        fooled = F.binary_cross_entropy_with_logits(critic(fake), ones)
        make_steps.zero_grad()
        fooled.backward()
        make_steps.step()
        job.log(step, judged.item(), fooled=fooled.item())
    job.finish(generator, critic)


if __name__ == "__main__":
    main()
