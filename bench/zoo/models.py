"""The models of the zoo: small enough for a few milliseconds a step, of the kinds that people train."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

VOCABULARY = 48
LENGTH = 20
CLASSES = 6
FEATURES, ANSWERS = 16, 4


class MLP(nn.Module):
    """Regression of four numbers from sixteen."""

    def __init__(self, layers: int = 3, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [FEATURES] + [width] * layers
        self.layers = nn.ModuleList(
            nn.ModuleDict({"linear": nn.Linear(before, after), "act": nn.ReLU(), "drop": nn.Dropout(dropout)})
            for before, after in itertools.pairwise(widths)
        )
        self.head = nn.Linear(width, ANSWERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer["drop"](layer["act"](layer["linear"](x)))  # type: ignore[index]
        out: torch.Tensor = self.head(x)
        return out


class Stage(nn.Module):
    """Convolution, normalisation, ReLU."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.act(self.norm(self.conv(x)))
        return out


class CNN(nn.Module):
    """Which of six shapes an image shows."""

    def __init__(self, layers: int = 3, width: int = 12, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [3] + [width] * layers
        self.stages = nn.ModuleList(
            Stage(before, after, 2 if index == 1 else 1)
            for index, (before, after) in enumerate(itertools.pairwise(widths))
        )
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        out: torch.Tensor = self.head(self.drop(x.amax((2, 3))))
        return out


class RNN(nn.Module):
    """The next token from a recurrent state."""

    def __init__(self, layers: int = 1, width: int = 32, dropout: float = 0.0, cell: str = "gru") -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.rnn = kind(width, width, layers, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(self.tokens(ids))
        out: torch.Tensor = self.head(self.norm(self.drop(hidden)))
        return out


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale, self.is_causal = heads, (width // heads) ** -0.5, True
        self.q_proj, self.k_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v_proj, self.out_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal, scale=self.scale)
        out: torch.Tensor = self.out_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Feed(nn.Module):
    """The feed-forward half of a block."""

    def __init__(self, width: int, act: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = nn.ReLU() if act == "relu" else nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.act(self.up(x)))
        return out


class Experts(nn.Module):
    """Two of four feed-forward networks for each token, chosen by a router."""

    def __init__(self, width: int, act: str, experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Feed(width, act) for _ in range(experts))
        self.aux_loss: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        shares = self.router(flat).float().softmax(-1)
        weights, chosen = shares.topk(self.top_k, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, token, (expert(flat[token]) * weights[token, place, None]).to(out.dtype))
        load = functional.one_hot(chosen, shares.shape[-1]).float().mean((0, 1))
        self.aux_loss = shares.shape[-1] * (load * shares.mean(0)).sum()
        return out.reshape(x.shape)


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width: int, heads: int, act: str, dropout: float, is_sparse: bool) -> None:
        super().__init__()
        self.norm_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = Experts(width, act) if is_sparse else Feed(width, act)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attn(self.norm_1(x)))
        out: torch.Tensor = x + self.drop(self.mlp(self.norm_2(x)))
        return out


class Transformer(nn.Module):
    """The next token; returns its loss beside the logits, as language models do."""

    def __init__(
        self,
        layers: int = 2,
        width: int = 32,
        dropout: float = 0.0,
        act: str = "gelu",
        is_sparse: bool = False,
        tied: bool = False,
        aux_weight: float = 0.02,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, 4, act, dropout, is_sparse) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.aux_weight = aux_weight
        self.criterion: Criterion | None = None
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.1)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        assert self.criterion is not None
        loss = self.criterion(logits, targets)
        for block in self.blocks:
            if isinstance(block.mlp, Experts) and block.mlp.aux_loss is not None:
                loss = loss + self.aux_weight * block.mlp.aux_loss
        return {"loss": loss, "logits": logits}


def make_model(kind: str, **options: Any) -> nn.Module:
    """A fresh model of one of the five kinds; the weights come from torch's global generator."""
    if kind == "moe":
        return Transformer(is_sparse=True, **options)
    return {"mlp": MLP, "cnn": CNN, "rnn": RNN, "transformer": Transformer}[kind](**options)
