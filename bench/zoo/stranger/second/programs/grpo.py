"""Group-relative policy optimisation of a small recurrent writer: rewards for the right words, a penalty for drift."""

from __future__ import annotations

import copy

import torch
from common import Job
from torch import Tensor, nn

VOCAB, LENGTH, PROMPTS, GROUP, KINDS = 20, 10, 8, 8, 4


class Policy(nn.Module):
    """Writes words, one after another, to a prompt of one token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB + KINDS, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.lm_head = nn.Linear(64, VOCAB)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.rnn(self.embedding(tokens), state)
        return self.lm_head(hidden), state


@torch.no_grad()
def write(policy: Policy, prompts: Tensor, temperature: float) -> Tensor:
    tokens, state, last = [prompts], None, prompts
    for _ in range(LENGTH):
        logits, state = policy(last[:, None], state)
        last = torch.multinomial((logits[:, 0] / temperature).softmax(-1), 1).squeeze(1)
        tokens.append(last)
    return torch.stack(tokens, 1)


def log_probabilities(policy: Policy, tokens: Tensor) -> Tensor:
    logits, _ = policy(tokens[:, :-1])
    return logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)


def rewards_of(tokens: Tensor) -> Tensor:
    """The share of words that belong to the prompt, less a bit for words said twice in a row."""
    kind, words = tokens[:, :1] - VOCAB, tokens[:, 1:]
    right = (words % KINDS == kind).float().mean(1)
    repeated = (words[:, 1:] == words[:, :-1]).float().mean(1)
    return right - 0.5 * repeated


def main() -> None:
    job = Job(
        steps=280,
        faults=["temperature-mismatch", "rollout-policy-stale", "rewards-misaligned", "kl-sign"],
        at_start=["loss-sign"],
        recipes=["plain", "reference-renewed", "entropy-bonus"],
    )
    policy = Policy()
    reference = copy.deepcopy(policy).requires_grad_(False)
    writer = policy
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(job.steps):
        if job.recipe == "reference-renewed" and step in (90, 180):
            reference.load_state_dict(policy.state_dict())
        if job.once("rollout-policy-stale", step):
            writer = copy.deepcopy(policy).requires_grad_(False)
        prompts = torch.randint(0, KINDS, (PROMPTS,)).repeat_interleave(GROUP) + VOCAB
        tokens = write(writer, prompts, 2.5 if job.on("temperature-mismatch", step) else 1.0)
        rewards = rewards_of(tokens)
        if job.on("rewards-misaligned", step):
            rewards = rewards.roll(GROUP // 2 + 1)
        groups = rewards.view(PROMPTS, GROUP)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-2)).flatten()
        with torch.no_grad():
            old = log_probabilities(writer, tokens)
            base = log_probabilities(reference, tokens)
        new = log_probabilities(policy, tokens)
        ratio = (new - old).exp()
        gain = torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        drift = (base - new).exp() - (base - new) - 1
        beta = -0.2 if job.on("kl-sign", step) else 0.02
        loss = -gain.mean() + beta * drift.mean()
        if job.recipe == "entropy-bonus":
            logits, _ = policy(tokens[:, :-1])
            entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
            loss = loss - 0.05 * (1 - step / job.steps) * entropy
        if job.fault == "loss-sign":
            loss = -loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        job.log(step, loss.item(), reward=rewards_of(tokens).mean().item(), drift=drift.mean().item())
    job.finish(policy)


if __name__ == "__main__":
    main()
