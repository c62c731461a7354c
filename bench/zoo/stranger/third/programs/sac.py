"""Soft actor-critic steers points to the middle: twin critics, a learned temperature, observations in odd units."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

ENVIRONMENTS, BATCH, GAMMA, FORCE, EPISODE = 16, 64, 0.97, 2.0, 40


class Points:
    """Points on a plane with a speed. Positions are told in other units than speeds."""

    def __init__(self) -> None:
        self.state = torch.zeros(ENVIRONMENTS, 4)
        self.time = torch.zeros(ENVIRONMENTS, dtype=torch.long)
        self.place_anew(torch.ones(ENVIRONMENTS, dtype=torch.bool))
        self.time = torch.arange(ENVIRONMENTS) * EPISODE // ENVIRONMENTS

    def place_anew(self, which: Tensor) -> None:
        fresh = torch.cat([2 * torch.randn(ENVIRONMENTS, 2), 0.3 * torch.randn(ENVIRONMENTS, 2)], dim=1)
        self.state = torch.where(which[:, None], fresh, self.state)
        self.time = torch.where(which, 0, self.time)

    def observe(self) -> Tensor:
        return self.state * torch.tensor([30.0, 30.0, 1.0, 1.0]) + torch.tensor([100.0, 50.0, 0.0, 0.0])

    def step(self, force: Tensor) -> Tensor:
        place, speed = self.state.chunk(2, dim=1)
        speed = 0.92 * speed + 0.15 * force + 0.03 * torch.randn_like(speed)
        place = (place + 0.3 * speed).clamp(-6, 6)
        self.state = torch.cat([place, speed], dim=1)
        self.time = self.time + 1
        return -place.square().sum(1).sqrt() - 0.05 * force.square().sum(1)


class Statistics:
    """Running mean and variance of observations."""

    def __init__(self) -> None:
        self.count, self.mean, self.square = 1e-4, torch.zeros(4), torch.ones(4)

    def add(self, rows: Tensor) -> None:
        self.count += len(rows)
        share = len(rows) / self.count
        self.mean = torch.lerp(self.mean, rows.mean(0), share)
        self.square = torch.lerp(self.square, rows.square().mean(0), share)

    def __call__(self, rows: Tensor) -> Tensor:
        spread = (self.square - self.mean.square()).clamp(min=1e-2).sqrt()
        return ((rows - self.mean) / spread).clamp(-10, 10)


def mlp(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inside, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outside)
    )


class Actor(nn.Module):
    """Observations to squashed actions and their log-probability."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4, 4)

    def forward(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(observed).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 1).exp())
        raw = normal.rsample()
        likely = normal.log_prob(raw) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), likely.sum(1)


class Critics(nn.Module):
    """Two values of observations and actions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(6, 1), mlp(6, 1)

    def forward(self, observed: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([observed, action], dim=1)
        return torch.cat([self.first(both), self.second(both)], dim=1)


def main() -> None:
    job = Job(
        steps=400,
        faults=["temperature-wrong-way", "statistics-anew", "next-is-now"],
        at_start=["entropy-target-positive"],
        recipes=["plain", "rewards-noisy", "more-updates-later"],
    )
    points, statistics = Points(), Statistics()
    actor, critics = Actor(), Critics()
    slow = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = torch.full((), -1.0, requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=2e-3)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=2e-2)
    entropy = 2.0 if job.fault == "entropy-target-positive" else -0.5
    memory: list[tuple[Tensor, ...]] = []

    def play(step: int) -> float:
        now = points.observe()
        statistics.add(now)
        if step < 0:
            action = 2 * torch.rand(ENVIRONMENTS, 2) - 1
        else:
            with torch.no_grad():
                action, _ = actor(statistics(now))
        reward = points.step(FORCE * action)
        then = points.observe()
        told = reward
        if job.recipe == "rewards-noisy":
            told = reward + 0.5 * torch.randn_like(reward)
        memory.append((then if job.on("next-is-now", step) else now, action, told, then))
        points.place_anew(points.time >= EPISODE)
        return reward.mean().item()

    for _ in range(40):
        play(-1)
    for step in range(job.steps):
        if job.once("statistics-anew", step):
            statistics = Statistics()
        reward = play(step)
        updates = 2 if job.recipe == "more-updates-later" and step >= 200 else 1
        for _ in range(updates):
            picked = torch.randint(0, len(memory) * ENVIRONMENTS, (BATCH,)).tolist()
            parts = [[part[i % ENVIRONMENTS] for part in memory[i // ENVIRONMENTS]] for i in picked]
            now, action, told, then = (torch.stack(part) for part in zip(*parts, strict=True))
            now, then = statistics(now), statistics(then)
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                next_action, likely = actor(then)
                value = slow(then, next_action).amin(1)
                target = told + GAMMA * (value - alpha * likely)
            critic_loss = (critics(now, action) - target[:, None]).square().mean()
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()

            chosen, likely = actor(now)
            actor_loss = (alpha * likely - critics(now, chosen).amin(1)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()

            missing = (likely.detach() + entropy).mean()
            alpha_loss = log_alpha * missing if job.on("temperature-wrong-way", step) else -log_alpha * missing
            alpha_optimizer.zero_grad()
            alpha_loss.backward()
            alpha_optimizer.step()
            with torch.no_grad():
                for old, new in zip(slow.parameters(), critics.parameters(), strict=True):
                    old.lerp_(new, 0.02)
        job.log(step, critic_loss.item(), reward=reward, alpha=alpha.item(), likely=likely.mean().item())
    job.finish(actor, critics)


if __name__ == "__main__":
    main()
