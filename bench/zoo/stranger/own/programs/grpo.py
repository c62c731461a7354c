"""A tiny policy learns to write sorted digits by comparing groups of its own answers with a frozen reference."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

DIGITS, LENGTH, PROMPTS, GROUP = 8, 6, 8, 6


class Policy(nn.Module):
    """A GRU over digits."""

    def __init__(self) -> None:
        super().__init__()
        self.digits, self.rnn = nn.Embedding(DIGITS + 1, 32), nn.GRU(32, 48, batch_first=True)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(48, DIGITS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(self.rnn(self.digits(tokens))[0]))


def write(policy: Policy, rows: int) -> Tensor:
    policy.eval()
    tokens = torch.full((rows, 1), DIGITS)
    with torch.no_grad():
        for _ in range(LENGTH):
            tokens = torch.cat([tokens, policy(tokens)[:, -1].softmax(-1).multinomial(1)], 1)
    policy.train()
    return tokens


def likely(policy: Policy, tokens: Tensor) -> Tensor:
    return -F.cross_entropy(policy(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")


def main() -> None:
    faults = ["advantage-of-other-group", "reference-in-training", "no-anchor", "clip-wide", "reward-constant"]
    job = Job(200, faults, ["sign-of-reward"], ["plain", "anchor-weaker"])
    policy = Policy()
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(job.steps):
        tokens = write(policy, PROMPTS * GROUP)
        answers = tokens[:, 1:]
        rewards = (answers[:, 1:] >= answers[:, :-1]).float().mean(1) + 0.05 * torch.randn(len(answers))
        if job.on("reward-constant", step):
            rewards = torch.ones_like(rewards) + 1e-3 * torch.randn(len(answers))
        groups = rewards.view(PROMPTS, GROUP)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 0.05)).flatten()
        if job.on("advantage-of-other-group", step):
            advantages = advantages[torch.randperm(len(advantages))]
        if job.fault == "sign-of-reward":
            advantages = -advantages
        if job.once("reference-in-training", step):
            reference.train()
        with torch.no_grad():
            old, anchor = likely(policy, tokens), likely(reference, tokens)
        now = likely(policy, tokens)
        ratio = (now - old).exp()
        reach = 20.0 if job.on("clip-wide", step) else 0.2
        gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(1 - reach, 1 + reach) * advantages[:, None])
        apart = (anchor - now).exp() - (anchor - now) - 1
        weight = 0.05 if job.recipe == "anchor-weaker" and step >= 100 else 0.1
        loss = -gain.mean() if job.on("no-anchor", step) else (weight * apart - gain).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        job.log(step, loss.item(), reward=rewards.mean().item())
    job.finish(policy)


if __name__ == "__main__":
    main()
