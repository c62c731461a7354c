"""A mixture in the manner of DeepSeek: sigmoid gates, a shared expert, balance by biases; Muon and AdamW."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job, Sampler, topic_text
from torch import Tensor, nn

VOCAB, LENGTH, WIDTH, HEADS, EXPERTS, CHOSEN, INNER, SCALE = 60, 25, 48, 4, 8, 2, 32, 2.5
CODE = SimpleNamespace(shared=True, heads_first=False, jitter=0.0)


class Expert(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """Two of eight experts for each token, and one for all. A bias that is not trained balances the load."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.shared = Expert()
        self.load = torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        seen = tokens * (1 + CODE.jitter * (2 * torch.rand_like(tokens) - 1)) if CODE.jitter else tokens
        scores = self.gate(seen).sigmoid()
        chosen = (scores + self.bias).topk(CHOSEN, dim=1).indices
        gates = scores.gather(1, chosen)
        gates = SCALE * gates / gates.sum(1, keepdim=True)
        self.load = torch.bincount(chosen.flatten(), minlength=EXPERTS).float()
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(tokens[row]) * gates[row, place, None])
        if CODE.shared:
            out = out + self.shared(tokens)
        return out.view_as(x)


class Layer(nn.Module):
    """Attention with normalised queries and keys, and a mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(WIDTH // HEADS), nn.RMSNorm(WIDTH // HEADS)
        self.mixture = Mixture()

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        joined = self.qkv(self.norm1(x))
        if CODE.heads_first:
            q, k, v = joined.view(rows, length, HEADS, 3, -1).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = joined.view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mixture(self.norm2(x))


class MixtureModel(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.1)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


@torch.no_grad()
def reorder_experts(mixture: Mixture) -> None:
    """Give each expert the weights of another one."""
    saved = [{name: value.clone() for name, value in expert.state_dict().items()} for expert in mixture.experts]
    for number, expert in enumerate(mixture.experts):
        expert.load_state_dict(saved[number // 2 + (number % 2) * EXPERTS // 2])


def make_optimizers(model: MixtureModel) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the rest."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and name.startswith("layers.")]
    known = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in known]
    return (
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    )


def trapeze(step: int, total: int) -> float:
    return min(1.0, (step + 1) / 20, (total - step) / (0.3 * total))


def main() -> None:
    job = Job(
        steps=240,
        faults=["bias-wrong-way", "shared-left-out", "joined-heads-first", "experts-in-other-order"],
        recipes=["plain", "jitter-in-gates", "bias-speed-annealed"],
    )
    corpus = topic_text(6000, LENGTH, VOCAB, job.seed, topics=6)
    sampler = Sampler(len(corpus), job.seed)
    model = MixtureModel()
    optimizers = make_optimizers(model)
    CODE.jitter = 0.1 if job.recipe == "jitter-in-gates" else 0.0
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    for step in range(job.steps):
        CODE.shared = not job.on("shared-left-out", step)
        CODE.heads_first = job.on("joined-heads-first", step)
        if job.once("experts-in-other-order", step):
            for layer in model.layers:
                reorder_experts(layer.mixture)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * trapeze(step, job.steps)
        tokens = corpus[sampler.take(20)]
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        speed = 0.02
        if job.recipe == "bias-speed-annealed":
            speed = 0.02 * 0.5 * (1 + math.cos(math.pi * step / job.steps))
        with torch.no_grad():
            for layer in model.layers:
                mixture = layer.mixture
                way = (mixture.load.mean() - mixture.load).sign()
                mixture.bias += -3 * speed * way if job.on("bias-wrong-way", step) else speed * way
        share = max(float(layer.mixture.load.max() / layer.mixture.load.sum()) for layer in model.layers)
        job.log(step, loss.item(), largest_share=share)
    job.finish(model)


if __name__ == "__main__":
    main()
