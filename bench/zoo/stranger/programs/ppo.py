"""An actor and a critic trained by PPO on a toy control task: several epochs over each rollout."""

from __future__ import annotations

import torch
from common import Job
from torch import Tensor, nn

ACTIONS, WALKERS, HORIZON = 3, 16, 16


class Policy(nn.Module):
    """Shared features, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor = nn.Linear(64, ACTIONS)
        self.critic = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.actor(hidden).log_softmax(-1), self.critic(hidden)[:, 0]


def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Push a cart on a spring towards a moving goal; the reward is its nearness."""
    place, speed, goal, phase = state.unbind(1)
    speed = 0.9 * speed + 0.2 * (action - 1).float() - 0.05 * place
    place = (place + speed).clamp(-3, 3)
    phase = phase + 0.1
    goal = phase.sin()
    return torch.stack([place, speed, goal, phase % 6.2832], dim=1), -(place - goal).abs()


def main() -> None:
    job = Job(
        steps=384,
        faults=["advantage-sign", "entropy-sign", "state-frozen", "reward-constant", "value-loss-times-1000"],
    )
    model = Policy()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5)
    state = torch.rand(WALKERS, 4) * 2 - 1
    step = 0
    while step < job.steps:
        seen, done, chances, rewards, values = [], [], [], [], []
        with torch.no_grad():
            for _ in range(HORIZON):
                view = torch.zeros_like(state) if job.on("state-frozen", step) else state
                chance, value = model(view)
                action = torch.multinomial(chance.exp(), 1)[:, 0]
                seen.append(view)
                done.append(action)
                values.append(value)
                chances.append(chance.gather(1, action[:, None])[:, 0])
                state, reward = advance(state, action)
                if job.on("reward-constant", step):
                    reward = torch.ones_like(reward)
                rewards.append(reward)
            following = model(state)[1]
            gain, gains = torch.zeros(WALKERS), []
            for at in reversed(range(HORIZON)):
                error = rewards[at] + 0.95 * following - values[at]
                gain = error + 0.95 * 0.9 * gain
                gains.append(gain)
                following = values[at]
        advantage = torch.stack(gains[::-1]).flatten()
        returns = advantage + torch.stack(values).flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        states, actions, before = torch.cat(seen), torch.cat(done), torch.cat(chances)
        for _ in range(3):
            for part in torch.randperm(len(states)).chunk(2):
                chance, value = model(states[part])
                ratio = (chance.gather(1, actions[part, None])[:, 0] - before[part]).exp()
                sign = -1 if job.on("advantage-sign", step) else 1
                use = sign * advantage[part]
                policy = -torch.min(ratio * use, ratio.clamp(0.8, 1.2) * use).mean()
                critic = (value - returns[part]).square().mean()
                entropy = -(chance.exp() * chance).sum(1).mean()
                bonus = -0.5 if job.on("entropy-sign", step) else 0.01
                weight = 1000.0 if job.on("value-loss-times-1000", step) else 0.5
                loss = policy + weight * critic - bonus * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                job.log(step, loss.item(), reward=float(torch.stack(rewards).mean()), entropy=entropy.item())
                step += 1
    job.finish(model)


if __name__ == "__main__":
    main()
