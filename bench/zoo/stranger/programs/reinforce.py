"""Policy gradient without a baseline on a pole that falls: few episodes per update, spiky losses."""

from __future__ import annotations

import math
import random

import torch
from common import Job
from torch import nn


def main() -> None:
    job = Job(steps=200)
    draw = random.Random(job.seed)
    policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for step in range(job.steps):
        chances, rewards, length = [], [], 0
        for _ in range(2):
            angle, speed, alive = draw.uniform(-0.1, 0.1), 0.0, 0
            while abs(angle) < 0.5 and alive < 40:
                chance = policy(torch.tensor([angle * 3, speed])).log_softmax(0)
                action = int(draw.random() < chance[1].exp().item())
                chances.append(chance[action])
                speed += 0.15 * math.sin(angle) + (0.08 if action else -0.08) + draw.gauss(0, 0.01)
                angle += speed
                alive += 1
            rewards += [float(alive - at) for at in range(alive)]
            length += alive
        loss = -(torch.stack(chances) * torch.tensor(rewards)).sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.log(step, loss.item(), length=length / 2)
    job.finish(policy)


if __name__ == "__main__":
    main()
