"""Longer loops, written after rules had taken their form: nobody tuned on any of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, fit, mlp, next_token_loss, text
from zoo.healthy.recipes.third_models import warm_up

Tensor = torch.Tensor
schedules = torch.optim.lr_scheduler


def regression(watch: Watch, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, schedule: object) -> None:
    """A table, 32 rows at a time."""
    rows = Table()

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    fit(watch, model, optimizer, loss_of, steps, schedule)


@loop(800)
def fourth_stepped_rate(watch: Watch, steps: int) -> None:
    """StepLR, halved every 150 steps."""
    model = mlp(12, 48, 48, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    regression(watch, model, sgd, steps, schedules.StepLR(sgd, 150, 0.5))


@loop(800)
def fourth_polynomial(watch: Watch, steps: int) -> None:
    """PolynomialLR to zero."""
    model = mlp(12, 32, 3, act=nn.GELU)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
    regression(watch, model, adam, steps, schedules.PolynomialLR(adam, steps, 2.0))


@loop(800)
def fourth_cycles(watch: Watch, steps: int) -> None:
    """CyclicLR, a triangle of 100 steps, with momentum against it."""
    model = mlp(12, 32, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    regression(watch, model, sgd, steps, schedules.CyclicLR(sgd, 0.005, 0.08, 50))


@loop(700)
def fourth_constant(watch: Watch, steps: int) -> None:
    """A constant rate long after the loss has reached its floor."""
    model = mlp(12, 32, 3)
    regression(watch, model, torch.optim.Adam(model.parameters(), lr=1e-3), steps, None)


@loop(600)
def fourth_decoder(watch: Watch, steps: int) -> None:
    """A decoder with dropout, warm-up and weight decay on matrices alone."""
    model = Decoder(layers=2, dropout=0.1)
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3
    )

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 60), 1.0)


@loop(700)
def fourth_images(watch: Watch, steps: int) -> None:
    """A residual network with batch norm and a cosine."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 12, 3, padding=1)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1)) for _ in range(3)
            )
            self.head = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = x + block(x)
            found: Tensor = self.head(x.mean((2, 3)))
            return found

    model = Residual()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def loss_of(_: int) -> Tensor:
        x, y = bars(16)
        return functional.cross_entropy(model(x), y)

    fit(watch, model, sgd, loss_of, steps, schedules.CosineAnnealingLR(sgd, steps))


@loop(700)
def fourth_denoiser(watch: Watch, steps: int) -> None:
    """An autoencoder of noisy rows with a bottleneck."""
    model = nn.Sequential(mlp(24, 32, 4), mlp(4, 32, 24))
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    basis = torch.randn(4, 24)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(48, 4) @ basis
        return functional.mse_loss(model(x + 0.3 * torch.randn_like(x)), x)

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fourth_counts(watch: Watch, steps: int) -> None:
    """Poisson regression of counts."""
    model = mlp(8, 32, 1)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(64, 8)
        y = torch.poisson((0.5 * x[:, :1] + 1).exp())
        return functional.poisson_nll_loss(model(x), y)

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fourth_survival(watch: Watch, steps: int) -> None:
    """Cox's partial likelihood, over pairs within a batch."""
    model = mlp(8, 32, 1)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(48, 8)
        time = torch.distributions.Exponential(x[:, 0].exp()).sample()
        score = model(x[time.argsort(descending=True)])[:, 0]
        return (torch.logcumsumexp(score, 0) - score).mean()

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fourth_gated(watch: Watch, steps: int) -> None:
    """A GRU that adds numbers far apart: nothing for long, then it is learned."""
    model = nn.ModuleDict({"rnn": nn.GRU(2, 32, batch_first=True), "out": nn.Linear(32, 1)})
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(_: int) -> Tensor:
        x = torch.zeros(32, 16, 2)
        x[:, :, 0] = torch.rand(32, 16)
        first, second = torch.randint(0, 8, (32,)), torch.randint(8, 16, (32,))
        x[torch.arange(32), first, 1] = x[torch.arange(32), second, 1] = 1
        wanted = (x[:, :, 0] * x[:, :, 1]).sum(1, keepdim=True)
        return functional.mse_loss(model["out"](model["rnn"](x)[0][:, -1]), wanted)

    fit(watch, model, adam, loss_of, steps, clip=1.0)


@loop(700)
def fourth_bandit(watch: Watch, steps: int) -> None:
    """A contextual bandit that learns from what it chose itself."""
    model = mlp(6, 32, 4)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    prices = torch.randn(6, 4)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(48, 6)
        scores = model(x)
        chosen = torch.where(torch.rand(48) < max(0.05, 1 - step / 300), torch.randint(0, 4, (48,)), scores.argmax(1))
        reward = (x @ prices).gather(1, chosen[:, None]) + 0.3 * torch.randn(48, 1)
        return functional.smooth_l1_loss(scores.gather(1, chosen[:, None]), reward)

    fit(watch, model, adam, loss_of, steps)


@loop(600)
def fourth_adapter(watch: Watch, steps: int) -> None:
    """Bottleneck adapters, started near zero, in a decoder that is frozen."""
    model = Decoder(layers=2).requires_grad_(False)
    model.adapters = nn.ModuleList(mlp(32, 8, 32, act=nn.GELU) for _ in range(2))
    for part in model.adapters:
        nn.init.normal_(part[2].weight, std=1e-3)
        nn.init.zeros_(part[2].bias)
    adam = torch.optim.AdamW(model.adapters.parameters(), lr=3e-3)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        x = model.tokens(ids) + model.places(torch.arange(16))
        mask = nn.Transformer.generate_square_subsequent_mask(16)
        for block, part in zip(model.blocks, model.adapters, strict=True):
            x = block(x, src_mask=mask, is_causal=True)
            x = x + part(x)
        return next_token_loss(model.head(model.norm(x)), ids)

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fourth_ordinal(watch: Watch, steps: int) -> None:
    """Ranks as several binary answers, with classes of very different frequency."""
    model = mlp(8, 32, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 8)
        level = (x[:, 0].abs() * 2).long().clamp(max=4)
        wanted = (level[:, None] > torch.arange(4)).float()
        return functional.binary_cross_entropy_with_logits(model(x), wanted)

    fit(watch, model, sgd, loss_of, steps)


@loop(600)
def fourth_loader(watch: Watch, steps: int) -> None:
    """A loader over a small set, shuffled, with augmentation, for many epochs."""
    x, y = bars(96)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    batches: list[list[Tensor]] = []

    def loss_of(_: int) -> Tensor:
        if not batches:
            batches.extend(loader)
        rows, labels = batches.pop()
        return functional.cross_entropy(model(rows + 0.1 * torch.randn_like(rows)), labels)

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fourth_amsgrad(watch: Watch, steps: int) -> None:
    """Adam with the largest second moment, and Huber's loss on outliers."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3, amsgrad=True)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        y = torch.where(torch.rand_like(y) < 0.02, 20 * y, y)
        return functional.huber_loss(model(x), y)

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fourth_cosine_match(watch: Watch, steps: int) -> None:
    """Two towers whose outputs are compared by their cosine, with hard negatives from the batch."""
    model = nn.ModuleDict({"one": mlp(12, 32, 16), "two": mlp(10, 32, 16)})
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    turn = torch.randn(12, 10)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(24, 12)
        one = functional.normalize(model["one"](x), dim=1)
        two = functional.normalize(model["two"](x @ turn / 3), dim=1)
        alike = one @ two.T
        worst = (alike - 2 * torch.eye(24)).amax(1)
        return (0.3 + worst - alike.diagonal()).clamp(min=0).mean()

    fit(watch, model, adam, loss_of, steps)
