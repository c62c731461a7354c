"""A state-space language model (Mamba-2 in quadratic form) on packed documents: bf16 autocast, accumulation."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

VOCAB, LENGTH, WIDTH, HEADS, STATE, DEPTH, TITLES, END, CUE = 44, 48, 64, 4, 16, 2, 10, 0, 11
CODE = SimpleNamespace(ahead=0, again=False)


class Documents:
    """Short documents, packed into rows. The first word of each decides which word comes after each cue in it."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.follows = torch.randint(CUE + 1, VOCAB, (VOCAB, 2), generator=self.generator).tolist()
        self.answers = (CUE + 1 + torch.randperm(VOCAB - CUE - 1, generator=self.generator)[:TITLES]).tolist()
        self.rest: list[tuple[int, int]] = []
        self.number = 0

    def document(self) -> list[int]:
        length = int(torch.randint(10, 24, (1,), generator=self.generator))
        title = int(torch.randint(1, TITLES + 1, (1,), generator=self.generator))
        draws = torch.rand(length, generator=self.generator).tolist()
        tokens = [title]
        for draw in draws:
            if tokens[-1] == CUE:
                tokens.append(self.answers[title - 1])
            elif draw < 0.35:
                tokens.append(CUE)
            else:
                tokens.append(self.follows[tokens[-1]][int(draw > 0.9)])
        return [*tokens, END]

    def take(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Tokens, and the number of the document that each belongs to."""
        need = rows * length
        while len(self.rest) < need:
            self.rest += [(token, self.number) for token in self.document()]
            self.number += 1
        taken, self.rest = self.rest[:need], self.rest[need:]
        both = torch.tensor(taken).view(rows, length, 2)
        return both[..., 0], both[..., 1]


class Mixer(nn.Module):
    """Convolution over time, then a state that decays at a rate that depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        inner = 2 * WIDTH
        self.size = inner // HEADS
        self.in_proj = nn.Linear(WIDTH, 2 * inner + 2 * STATE + HEADS, bias=False)
        self.conv1d = nn.Conv1d(inner + 2 * STATE, inner + 2 * STATE, 4, groups=inner + 2 * STATE)
        self.A_log = nn.Parameter(torch.linspace(1, 8, HEADS).log())
        self.D = nn.Parameter(torch.ones(HEADS))
        dt = torch.exp(torch.rand(HEADS) * (math.log(0.1) - math.log(0.005)) + math.log(0.005))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = nn.RMSNorm(inner)
        self.out_proj = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor, owner: Tensor) -> Tensor:
        rows, length, _ = x.shape
        inner = HEADS * self.size
        gate, mixed, dt = self.in_proj(x).split([inner, inner + 2 * STATE, HEADS], dim=-1)
        padded = F.pad(mixed.transpose(1, 2), (3 - CODE.ahead, CODE.ahead))
        mixed = F.silu(self.conv1d(padded)).transpose(1, 2)
        values, b, c = mixed.float().split([inner, STATE, STATE], dim=-1)
        values = values.view(rows, length, HEADS, self.size)
        dt = F.softplus(dt.float() + self.dt_bias)
        if CODE.again:
            dt = F.softplus(dt)
        total = (dt * -self.A_log.exp()).cumsum(1)
        decay = total[:, :, None] - total[:, None, :]
        seen = torch.ones(length, length, dtype=torch.bool).tril() & (owner[:, :, None] == owner[:, None, :])
        kernel = decay.masked_fill(~seen[..., None], -torch.inf).exp()
        kernel = kernel * (c @ b.transpose(1, 2))[..., None] * dt[:, None]
        y = torch.einsum("bijh,bjhp->bihp", kernel, values) + self.D[:, None] * values
        return self.out_proj(self.norm(y.reshape(rows, length, inner) * F.silu(gate.float())))


class StateSpaceModel(nn.Module):
    """Tokens to logits; the head is the embedding."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCAB, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(DEPTH))
        self.mixers = nn.ModuleList(Mixer() for _ in range(DEPTH))
        self.norm_f = nn.RMSNorm(WIDTH)
        nn.init.normal_(self.embeddings.weight, std=std)

    def forward(self, tokens: Tensor, owner: Tensor) -> Tensor:
        x = self.embeddings(tokens)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x), owner)
        return F.linear(self.norm_f(x), self.embeddings.weight)


def main() -> None:
    job = Job(
        steps=220,
        faults=["conv-sees-ahead", "softplus-twice", "warmup-again"],
        at_start=["embedding-unscaled"],
        recipes=["plain", "longer-rows"],
    )
    documents = Documents(job.seed)
    model = StateSpaceModel(std=1.0 if job.fault == "embedding-unscaled" else 0.05)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95))

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / 25) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / job.steps)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(job.steps):
        CODE.ahead = 1 if job.on("conv-sees-ahead", step) else 0
        CODE.again = job.on("softplus-twice", step)
        if job.once("warmup-again", step):
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        length = 24 if job.recipe == "longer-rows" and step < 110 else LENGTH
        parts = [documents.take(8, length + 1) for _ in range(2)]
        total = 0.0
        for tokens, owner in parts:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(tokens[:, :-1], owner[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            (loss / 2).backward()
            total += loss.item() / 2
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        job.log(step, total, norm=norm.item())
    job.finish(model)


if __name__ == "__main__":
    main()
