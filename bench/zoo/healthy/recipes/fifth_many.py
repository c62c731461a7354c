"""Loops of a fifth round with many tensors: rules look at hundreds of series in each step.

Written before anybody looked at what rules say of them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, fit, mlp, next_token_loss, text
from zoo.healthy.recipes.third_models import warm_up

Tensor = torch.Tensor


class Residual(nn.Module):
    """A normalised block that starts as nothing much."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        nn.init.normal_(self.two.weight, 0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.two(functional.gelu(self.one(self.norm(x))))
        return found


@loop(500, tiny={"batch": 4})
def fifth_deep_table(watch: Watch, steps: int, batch: int = 32) -> None:
    """Eighty residual blocks over a table."""
    model = nn.Sequential(nn.Linear(12, 16), *(Residual(16) for _ in range(80)), nn.Linear(16, 3))
    adam = torch.optim.AdamW(model.parameters(), lr=5e-4)
    rows = Table()

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(batch)
        return functional.mse_loss(model(x), y)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 40), 1.0)


@loop(400)
def fifth_deep_words(watch: Watch, steps: int) -> None:
    """A decoder of sixteen layers with dropout."""
    model = Decoder(width=16, layers=16, dropout=0.1)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def loss_of(_: int) -> Tensor:
        ids = text(4, 12)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 50), 1.0)


@loop(500)
def fifth_many_heads(watch: Watch, steps: int) -> None:
    """Ninety small networks that each learn another answer: their gradients have nothing to do with each other."""
    model = nn.ModuleList(mlp(12, 8, 1) for _ in range(90))
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    rows = Table(answers=90)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(16)
        return functional.mse_loss(torch.cat([part(x) for part in model], 1), y)

    fit(watch, model, adam, loss_of, steps)


@loop(400)
def fifth_deep_images(watch: Watch, steps: int) -> None:
    """Thirty convolutions with batch norms, momentum, a cosine."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.3 * functional.relu(self.norm(self.conv(x)))

    model = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), *(Block() for _ in range(30)))
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)])
    sgd = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)

    def loss_of(_: int) -> Tensor:
        x, y = bars(12)
        return functional.cross_entropy(model(x), y)

    fit(watch, model, sgd, loss_of, steps, torch.optim.lr_scheduler.CosineAnnealingLR(sgd, steps))
