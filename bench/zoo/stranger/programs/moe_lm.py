"""A mixture-of-experts language model of one's own: top-2 routing, balance loss, AdamW with a constant rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler, topic_text
from torch import Tensor, nn

VOCAB, LENGTH, WIDTH, EXPERTS = 64, 32, 64, 6


class Expert(nn.Module):
    """A feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Mixture(nn.Module):
    """Sends each token to its two best experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.noise = 0.0
        self.renormalise = True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.reshape(-1, WIDTH)
        logits = self.router(flat)
        if self.noise:
            logits = logits + self.noise * torch.randn_like(logits)
        shares = logits.softmax(-1)
        weights, chosen = shares.topk(2, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = (chosen == number).nonzero(as_tuple=True)
            result = result.index_add(0, token, expert(flat[token]) * weights[token, slot, None])
        load = F.one_hot(chosen, EXPERTS).float().sum(1).mean(0) / 2
        return result.view_as(x), EXPERTS * (load * shares.mean(0)).sum()


class Model(nn.Module):
    """Two layers of attention and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.05)
        self.attention = nn.ModuleList(nn.MultiheadAttention(WIDTH, 4, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.mixtures = nn.ModuleList(Mixture() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        length = tokens.shape[1]
        x = self.embed(tokens) + self.position[:length]
        mask = torch.full((length, length), float("-inf")).triu(1)
        balance = x.new_zeros(())
        for layer in range(2):
            y = self.norms[2 * layer](x)
            x = x + self.attention[layer](y, y, y, attn_mask=mask, need_weights=False)[0]
            y, cost = self.mixtures[layer](self.norms[2 * layer + 1](x))
            x, balance = x + y, balance + cost
        return self.head(x), balance


def main() -> None:
    job = Job(steps=280, faults=["balance-sign", "expert-zeroed", "router-noise", "gates-raw", "router-stuck"])
    text = topic_text(6000, LENGTH + 1, VOCAB, job.seed)
    sampler = Sampler(len(text), job.seed)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    for step in range(job.steps):
        rows = text[sampler.take(16)]
        weight = -0.5 if job.on("balance-sign", step) else 0.02
        if job.on("router-noise", step):
            model.mixtures[1].noise = 4.0
        if job.on("gates-raw", step):
            model.mixtures[0].renormalise = False
        if job.once("expert-zeroed", step):
            with torch.no_grad():
                for parameter in model.mixtures[1].experts[2].parameters():
                    parameter.zero_()
        if job.once("router-stuck", step):
            with torch.no_grad():
                model.mixtures[0].router.weight *= 30
        logits, balance = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + weight * balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.log(step, loss.item(), balance=balance.item())
    job.finish(model)


if __name__ == "__main__":
    main()
