"""Two views of one image with a slow teacher (as in BYOL): the teacher follows the student, LARS-like scaling."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, normalised
from torch import nn


class ScaledMomentum(torch.optim.Optimizer):
    """Momentum whose step is a share of each weight's norm."""

    def __init__(self, parameters: object, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                ratio = 1.0
                if parameter.ndim > 1:
                    ratio = float(parameter.norm() / (parameter.grad.norm() + 1e-9)) * 0.02
                state = self.state[parameter]
                memory = state.setdefault("memory", torch.zeros_like(parameter))
                memory.mul_(0.9).add_(parameter.grad, alpha=ratio * group["lr"])
                parameter.sub_(memory)


def main() -> None:
    job = Job(steps=300)
    images, _ = class_images(4000, 16, 3, 8, job.seed)
    sampler = Sampler(len(images), job.seed)
    body = nn.Sequential(nn.Flatten(), nn.Linear(768, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))
    student = nn.ModuleDict({"body": body, "guess": nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))})
    teacher = copy.deepcopy(body).requires_grad_(False)
    optimizer = ScaledMomentum(student.parameters(), lr=0.3)
    for step in range(job.steps):
        batch = normalised(images[sampler.take(32)])
        first, second = (batch + 0.3 * torch.randn_like(batch) for _ in range(2))
        loss = torch.zeros(())
        for view, seen in ((first, second), (second, first)):
            guess = student["guess"](student["body"](view))
            with torch.no_grad():
                goal = teacher(seen)
            loss = loss + 2 - 2 * F.cosine_similarity(guess, goal, dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate = 0.99
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), body.parameters(), strict=True):
                slow.lerp_(fast, 1 - rate)
        job.log(step, loss.item())
    job.finish(student)


if __name__ == "__main__":
    main()
