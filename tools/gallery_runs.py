"""The trainings of docs/gallery.md: small models on the CPU, each with one fault. tools/make_gallery.py draws them.

Every function is a whole training and is shown on the page as it stands here. `watch` is `vario.watch` with a folder,
a name and `every=1`: short runs are recorded at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

Watch = Callable[..., Any]


class Attention(nn.Module):
    """Self-attention as it is often written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        """Attend to every key that is not padding."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // 4) ** 0.5
        weights = scores.masked_fill(is_padding[:, None, None], float("-inf")).softmax(-1)
        mixed: torch.Tensor = self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return mixed


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        """Attention, then the feed-forward part."""
        x = x + self.attention(self.norm_1(x), is_padding)
        return torch.add(x, self.mlp(self.norm_2(x)))


class Transformer(nn.Module):
    """Three blocks that classify a sequence of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, is_padding)
        scores: torch.Tensor = self.head(x.mean(1))
        return scores


def mlp() -> nn.Sequential:
    """Four layers with ReLU."""
    layers = (nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(128, 10))


def rows(count: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh inputs and the class of each."""
    inputs = torch.randn(count, 16)
    return inputs, (inputs[:, :10] + inputs[:, 6:]).argmax(1)


def sentences() -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of tokens and the class of each: the most frequent kind of token."""
    tokens = torch.randint(50, (32, 16))
    return tokens, nn.functional.one_hot(tokens % 10).sum(1).argmax(1)


def learning_rate_too_high(watch: Watch) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as monitor:
        for step in range(160):
            if step == 100:
                optimizer.param_groups[0]["lr"] = 0.1  # a schedule in other units
            inputs, classes = rows()
            loss = cross_entropy(model(inputs), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


def nan_in_attention(watch: Watch) -> None:
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as monitor:
        for step in range(140):
            tokens, classes = sentences()
            is_padding = torch.zeros_like(tokens, dtype=torch.bool)
            if step == 100:
                is_padding[5] = True  # an empty sentence: nothing but padding
            loss = cross_entropy(model(tokens, is_padding), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


def dead_relus(watch: Watch) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer) as monitor:
        for step in range(180):
            inputs, classes = rows()
            if step == 100:
                inputs = inputs.abs() * 100  # one batch that was not normalised
            loss = cross_entropy(model(inputs), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


def layers_without_gradient(watch: Watch) -> None:
    model = mlp()
    first, last = model[:4], model[4:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as monitor:
        for _ in range(120):
            inputs, classes = rows()
            with torch.no_grad():  # left over from an experiment with frozen features
                features = first(inputs)
            loss = cross_entropy(last(features), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


def exploding_gradients(watch: Watch) -> None:
    rnn, head = nn.RNN(8, 48, nonlinearity="relu", batch_first=True), nn.Linear(48, 1)
    rnn.weight_hh_l0.data = 1.05 * torch.eye(48)
    model = nn.ModuleDict({"rnn": rnn, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as monitor:
        for step in range(160):
            length = 20 if step < 100 else 120  # longer sequences, and no clipping
            inputs = torch.randn(32, length, 8)
            outputs, _ = rnn(inputs)
            loss = (head(outputs[:, -1]) - inputs.mean((1, 2))[:, None]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


def repeated_data(watch: Watch) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = rows()
    with watch(model, optimizer) as monitor:
        for step in range(180):
            if step < 100:  # from here on the loader hands out its last batch again
                batch = rows()
            inputs, classes = batch
            loss = cross_entropy(model(inputs), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


def float16_overflow(watch: Watch) -> None:
    model = mlp().half()
    nn.init.normal_(model[0].weight, std=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with watch(model, optimizer) as monitor:
        for step in range(160):
            inputs, classes = rows()
            if step >= 100:
                inputs[:, 0] = 20 * (step - 99) ** 2  # a column that was not normalised: a counter of rows
            loss = cross_entropy(model(inputs.half()).float(), classes)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            monitor.log(loss=loss.item())


def loss_scale_too_high(watch: Watch) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2000)
    with watch(model, optimizer) as monitor:
        for step in range(160):
            if step == 100:
                scaler.update(2.0**40)  # restored from a checkpoint of another job
            inputs, classes = rows()
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(model(inputs), classes)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            monitor.log(loss=loss.item(), loss_scale=scaler.get_scale())
