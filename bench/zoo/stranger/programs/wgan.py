"""A Wasserstein GAN with a gradient penalty on points in a plane: three critic updates for each of the generator."""

from __future__ import annotations

import torch
from common import Job
from torch import Tensor, nn


def ring(count: int) -> Tensor:
    """Points near eight centres on a circle."""
    angle = torch.randint(0, 8, (count,)) * (torch.pi / 4)
    return 2 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.1 * torch.randn(count, 2)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, outputs))


def main() -> None:
    job = Job(steps=150)
    generator, critic = network(4, 2), network(2, 1)
    make_steps = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    judge_steps = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    for step in range(job.steps):
        for _ in range(3):
            real, fake = ring(64), generator(torch.randn(64, 4)).detach()
            between = torch.lerp(real, fake, torch.rand(64, 1)).requires_grad_(True)
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            judged = critic(fake).mean() - critic(real).mean() + 10 * penalty
            judge_steps.zero_grad()
            judged.backward()
            judge_steps.step()
        made = -critic(generator(torch.randn(64, 4))).mean()
        make_steps.zero_grad()
        made.backward()
        make_steps.step()
        job.log(step, judged.item(), made=made.item())
    job.finish(generator, critic)


if __name__ == "__main__":
    main()
