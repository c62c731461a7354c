"""Rows to train on: tables with a teacher, images of bars, text with a rule. They never repeat unless asked to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Table:
    """Numbers and what a fixed random network answers to them."""

    def __init__(self, features: int = 12, answers: int = 3, seed: int = 5, noise: float = 0.05) -> None:
        made = torch.Generator().manual_seed(seed)
        self.one = torch.randn(features, 16, generator=made) / features**0.5
        self.two = torch.randn(16, answers, generator=made) / 4
        self.features, self.noise = features, noise

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, self.features)
        y = torch.tanh(x @ self.one) @ self.two * 2
        return x, y + self.noise * torch.randn_like(y)

    def classes(self, size: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch(size)
        return x, y.argmax(1)


def bars(size: int, side: int = 12, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Noisy images with a bar in one of four places."""
    label = torch.randint(0, 4, (size,))
    image = 0.3 * torch.randn(size, channels, side, side)
    quarter = side // 4
    for number in range(4):
        image[label == number, :, :, number * quarter : (number + 1) * quarter] += 1.0
    return image, label


def text(size: int, length: int = 16, words: int = 24) -> Tensor:
    """Tokens that follow each other by a rule, three times in four."""
    ids = torch.randint(0, words, (size, length))
    for at in range(1, length):
        by_rule = (ids[:, at - 1] * 5 + 7) % words
        ids[:, at] = torch.where(torch.rand(size) < 0.75, by_rule, ids[:, at])
    return ids


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


class Decoder(nn.Module):
    """A small causal language model."""

    def __init__(
        self, words: int = 24, width: int = 32, layers: int = 2, length: int = 64, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        out: Tensor = self.head(self.norm(x))
        return out


def next_token_loss(logits: Tensor, ids: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of each next token."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=smoothing)


def fit(
    watch: Callable[..., Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[int], Tensor],
    steps: int,
    schedule: Any = None,
    clip: float = 0.0,
    after: Callable[[int], None] | None = None,
) -> None:
    """The plain loop: a loss, a backward pass, an update; `after` is called at the end of each step."""
    with watch(model, optimizer) as monitor:
        for step in range(steps):
            loss = loss_of(step)
            optimizer.zero_grad()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            monitor.log(loss=loss.item())
            if after is not None:
                after(step)
