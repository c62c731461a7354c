"""A small Llama of one's own: rotary positions, grouped heads, gated MLP; bf16 autocast, accumulation, WSD schedule."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler
from torch import Tensor, nn

VOCAB, LENGTH, WIDTH, HEADS, KV_HEADS, DEPTH, ACCUMULATE = 48, 32, 64, 4, 2, 2, 2


def two_back_text(rows: int, seed: int) -> Tensor:
    """Text in which a token mostly follows from the one two places before it."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, VOCAB, (VOCAB,), generator=generator)
    tokens = [torch.randint(0, VOCAB, (rows,), generator=generator) for _ in range(2)]
    for _ in range(LENGTH - 1):
        noise = torch.randint(0, VOCAB, (rows,), generator=generator)
        follows = torch.rand(rows, generator=generator) < 0.85
        tokens.append(torch.where(follows, table[tokens[-2]], noise))
    return torch.stack(tokens, dim=1)


class RotaryAttention(nn.Module):
    """Causal attention with rotary positions; two heads share a key and a value."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.size = size
        self.q_proj = nn.Linear(WIDTH, HEADS * size, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * size, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * size, bias=False)
        self.o_proj = nn.Linear(HEADS * size, WIDTH, bias=False)
        self.base = 10000.0
        self.interleaved = False
        self.mixed_up = False
        self.sees = 0

    def rotate(self, x: Tensor) -> Tensor:
        length, half = x.shape[2], self.size // 2
        angles = torch.arange(length)[:, None] * self.base ** (-torch.arange(half) / half)
        if self.interleaved:
            first, second = x[..., 0::2], x[..., 1::2]
        else:
            first, second = x[..., :half], x[..., half:]
        a = first * angles.cos() - second * angles.sin()
        b = first * angles.sin() + second * angles.cos()
        return torch.stack([a, b], -1).flatten(-2) if self.interleaved else torch.cat([a, b], -1)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q = self.rotate(self.q_proj(x).view(rows, length, HEADS, -1).transpose(1, 2))
        k = self.rotate(self.k_proj(x).view(rows, length, KV_HEADS, -1).transpose(1, 2))
        v = self.v_proj(x).view(rows, length, KV_HEADS, -1).transpose(1, 2)
        times = HEADS // KV_HEADS
        k, v = (
            part.repeat(1, times, 1, 1) if self.mixed_up else part.repeat_interleave(times, dim=1) for part in (k, v)
        )
        visible = torch.ones(length, length, dtype=torch.bool).tril(self.sees)
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=visible)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 160, bias=False)
        self.up = nn.Linear(WIDTH, 160, bias=False)
        self.down = nn.Linear(160, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and MLP behind RMS norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = RotaryAttention(), GatedMLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = name.endswith(("o_proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.06 / (2 * DEPTH) ** 0.5 if last else 0.06)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def warmup_stable_decay(step: int, total: int) -> float:
    return min(1.0, (step + 1) / 25, 0.05 + (total - step) / (0.25 * total))


def main() -> None:
    job = Job(
        steps=240,
        faults=["rope-interleaved", "kv-heads-repeated", "other-tokenizer", "gradient-inf"],
        at_start=["mask-off-by-one"],
        recipes=["plain", "context-extension"],
    )
    corpus = two_back_text(8000, job.seed)
    other = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(job.seed + 1))
    sampler = Sampler(len(corpus), job.seed)
    model = LanguageModel()
    if job.fault == "mask-off-by-one":
        for block in model.blocks:
            block.attention.sees = 1
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_stable_decay(step, job.steps))
    for step in range(job.steps):
        if job.once("rope-interleaved", step):
            for block in model.blocks:
                block.attention.interleaved = True
        if job.once("kv-heads-repeated", step):
            for block in model.blocks:
                block.attention.mixed_up = True
        length = LENGTH + 1
        if job.recipe == "context-extension":
            length = LENGTH // 2 + 1 if step < 120 else LENGTH + 1
            for block in model.blocks:
                block.attention.base = 10000.0 if step < 120 else 40000.0
        total = 0.0
        for _ in range(ACCUMULATE):
            tokens = corpus[sampler.take(10), :length]
            if job.on("other-tokenizer", step):
                tokens = torch.cat([other[tokens[:5]], tokens[5:]])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()) / ACCUMULATE
            loss.backward()
            total += loss.item()
        if job.once("gradient-inf", step):
            model.blocks[1].mlp.up.weight.grad[7, 3] = float("inf")
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        job.log(step, total, norm=norm.item())
    job.finish(model)


if __name__ == "__main__":
    main()
