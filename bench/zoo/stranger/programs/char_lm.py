"""A decoder-only transformer of one's own on synthetic text: AdamW with two groups, warm-up and cosine, clipping."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Job, Sampler, flip_bit, topic_text
from torch import Tensor, nn

VOCAB, LENGTH, WIDTH, HEADS, DEPTH = 64, 48, 96, 4, 4


class Attention(nn.Module):
    """Causal self-attention, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.temperature = torch.tensor(1.0)
        self.causal = True

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (part(x).view(rows, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) * self.temperature
        if self.causal:
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.skip_norm = False

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x if self.skip_norm else self.norm1(x))
        return x + self.down(F.gelu(self.up(x if self.skip_norm else self.norm2(x))))


class Model(nn.Module):
    """The language model; embedding and head share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Embedding(LENGTH + 16, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.05)
        self.head.weight = self.embed.weight
        self.offset = 0

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]) + self.offset
        x = self.embed(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    job = Job(
        steps=300,
        faults=[
            "mask-off",
            "norm-bypass",
            "position-shift",
            "lr-spike",
            "temperature-runaway",
            "weight-bit",
            "untied",
            "data-rewind",
            "decay-everything",
        ],
    )
    text = topic_text(6000, LENGTH + 1, VOCAB, job.seed)
    sampler = Sampler(len(text), job.seed)
    model = Model()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95))

    def rate(step: int) -> float:
        if step < 20:
            return (step + 1) / 20
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 20) / (job.steps - 20)))

    for step in range(job.steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * rate(step)
            if job.on("lr-spike", step) and step < job.begin + 5:
                group["lr"] = 2e-3 * rate(step) * 15
        if job.on("mask-off", step):
            for block in model.blocks:
                block.attention.causal = False
        if job.on("norm-bypass", step):
            model.blocks[2].skip_norm = True
        if job.on("position-shift", step):
            model.offset = 11
        if job.on("temperature-runaway", step):
            model.blocks[1].attention.temperature *= 1.06
        if job.once("weight-bit", step):
            flip_bit(model.blocks[1].up.weight, 4321, 30)
        if job.once("untied", step):
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        if job.once("data-rewind", step):
            sampler.restart()
        if job.on("decay-everything", step):
            optimizer.param_groups[1]["weight_decay"] = 20.0
        rows = text[sampler.take(16)]
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        job.log(step, loss.item(), norm=norm.item())
    job.finish(model)


if __name__ == "__main__":
    main()
