"""Loops of a third round, by loss: written together, before anybody looked at what rules say of them."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, fit, mlp, next_token_loss, text
from zoo.healthy.recipes.third_models import warm_up

Tensor = torch.Tensor


@loop(260)
def grouped_rewards(watch: Watch, steps: int) -> None:
    """GRPO: four answers to each prompt, advantages within the group, and a divergence from a fixed copy."""
    model = Decoder(words=12, length=16)
    fixed = copy.deepcopy(model).requires_grad_(False)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss_of(_: int) -> Tensor:
        ids = torch.randint(0, 12, (4, 3)).repeat_interleave(4, 0)
        with torch.no_grad():
            for _place in range(5):
                ids = torch.cat([ids, torch.multinomial(model(ids)[:, -1].softmax(-1), 1)], 1)
        reward = (ids[:, 3:] == 5).float().mean(1).view(4, 4)
        advantage = ((reward - reward.mean(1, True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
        chance = model(ids).log_softmax(-1)[:, 2:-1].gather(2, ids[:, 3:, None])[:, :, 0]
        with torch.no_grad():
            base = fixed(ids).log_softmax(-1)[:, 2:-1].gather(2, ids[:, 3:, None])[:, :, 0]
        apart = (base - chance).exp() - (base - chance) - 1
        return (-(chance - chance.detach()).exp() * advantage + 0.04 * apart).mean()

    fit(watch, model, adam, loss_of, steps, clip=1.0)


@loop(300)
def annealed_divergence(watch: Watch, steps: int) -> None:
    """A VAE whose divergence is weighted from 0 to 1 over the first half, with free bits."""
    model = nn.ModuleDict({"into": mlp(24, 48, 16), "back": mlp(8, 48, 24)})
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    basis = torch.randn(4, 24)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(32, 4) @ basis + 0.1 * torch.randn(32, 24)
        mean, log_var = model["into"](x).chunk(2, 1)
        found = model["back"](mean + torch.randn_like(mean) * (log_var / 2).exp())
        apart = (0.5 * (mean**2 + log_var.exp() - 1 - log_var)).mean(0).clamp(min=0.05).sum()
        return functional.mse_loss(found, x, reduction="none").sum(1).mean() + min(1.0, step / 150) * apart

    fit(watch, model, adam, loss_of, steps)


@loop(260, queue={"temperature": 0.2})
def queue_of_keys(watch: Watch, steps: int, temperature: float = 0.07) -> None:
    """MoCo: negatives from a queue, keys from an encoder that follows slowly."""
    model = nn.ModuleDict({"query": mlp(16, 32, 16), "key": mlp(16, 32, 16)})
    model["key"].load_state_dict(model["query"].state_dict())
    model["key"].requires_grad_(False)
    sgd = torch.optim.SGD(model["query"].parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    queue = functional.normalize(torch.randn(128, 16), dim=1)

    def loss_of(_: int) -> Tensor:
        nonlocal queue
        x = torch.randn(32, 16)
        one, other = x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)
        query = functional.normalize(model["query"](one), dim=1)
        with torch.no_grad():
            for slow, fast in zip(model["key"].parameters(), model["query"].parameters(), strict=True):
                slow.lerp_(fast, 0.01)
            key = functional.normalize(model["key"](other), dim=1)
        scores = torch.cat([(query * key).sum(1, True), query @ queue.T], 1) / temperature
        queue = torch.cat([queue[32:], key])
        return functional.cross_entropy(scores, torch.zeros(32, dtype=torch.long))

    fit(watch, model, sgd, loss_of, steps)


@loop(280)
def tasks_in_turn(watch: Watch, steps: int) -> None:
    """Three tasks share a trunk; each step trains one of them, and losses differ by a factor of ten."""
    model = nn.ModuleDict({"trunk": mlp(12, 32, 32), "heads": nn.ModuleList(nn.Linear(32, 3) for _ in range(3))})
    tables = [Table(seed=seed) for seed in range(3)]
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(step: int) -> Tensor:
        task = int(torch.randint(0, 3, ()))
        x, y = tables[task].batch(24)
        return (0.3, 1.0, 3.0)[task] * functional.mse_loss(model["heads"][task](model["trunk"](x).relu()), y)

    fit(watch, model, adam, loss_of, steps)


@loop(260)
def uncertain_weights(watch: Watch, steps: int) -> None:
    """Two losses weighted by uncertainties that are learned; the sum falls below zero."""
    model, rows = nn.ModuleDict({"net": mlp(12, 32, 6)}), Table()
    model["net"].register_parameter("doubt", nn.Parameter(torch.zeros(2)))
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        found = model["net"](x)
        losses = torch.stack([functional.mse_loss(found[:, :3], y), functional.mse_loss(found[:, 3:], y**2)])
        doubt = model["net"].doubt
        return (losses * (-doubt).exp() + doubt).sum()

    fit(watch, model, adam, loss_of, steps)


@loop(280)
def mixture_density(watch: Watch, steps: int) -> None:
    """The negative log-likelihood of a mixture, which has no lower end at zero."""
    model = mlp(2, 48, 15)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(_: int) -> Tensor:
        x = torch.rand(64, 2) * 2 - 1
        y = x[:, :1] + torch.where(torch.rand(64, 1) < 0.5, 0.5, -0.5) + 0.05 * torch.randn(64, 1)
        weight, mean, spread = model(x).chunk(3, 1)
        parts = torch.distributions.Normal(mean, functional.softplus(spread) + 1e-2).log_prob(y)
        return -torch.logsumexp(weight.log_softmax(1) + parts, 1).mean()

    fit(watch, model, adam, loss_of, steps)


@loop(240)
def weights_with_doubt(watch: Watch, steps: int) -> None:
    """Bayes by backprop: each weight has a mean and a spread, and is drawn in each pass."""

    class Doubt(nn.Module):
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.randn(after, before) / before**0.5)
            self.spread = nn.Parameter(torch.full((after, before), -4.0))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.mean + functional.softplus(self.spread) * torch.randn_like(self.mean))

    model, rows = nn.Sequential(Doubt(12, 32), nn.ReLU(), Doubt(32, 3)), Table()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(48)
        apart = sum(
            (part.mean**2 + functional.softplus(part.spread) ** 2 - 2 * functional.softplus(part.spread).log()).sum()
            for part in (model[0], model[2])
        )
        return functional.mse_loss(model(x), y) + 1e-5 * apart

    fit(watch, model, adam, loss_of, steps)


@loop(260)
def quantile_forecast(watch: Watch, steps: int) -> None:
    """Dilated convolutions over random walks, whose size differs from batch to batch; a pinball loss."""
    model = nn.Sequential(nn.Conv1d(1, 16, 3), nn.ReLU(), nn.Conv1d(16, 16, 3, dilation=4), nn.ReLU())
    model.extend([nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 3)])
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss_of(_: int) -> Tensor:
        size = math.exp(float(torch.randn(())) * 0.5)
        walk = size * torch.randn(16, 1, 33).cumsum(2)
        off = walk[:, 0, -1:] - walk[:, 0, -2:-1] - model(walk[:, :, :-1])
        return torch.maximum(levels * off, (levels - 1) * off).mean()

    fit(watch, model, adam, loss_of, steps)


@loop(300)
def pseudo_labels(watch: Watch, steps: int) -> None:
    """FixMatch: rows without labels count once the model is sure of them, which is more and more of them."""
    model = mlp(12, 32, 3)
    rows = Table(noise=0.0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def loss_of(_: int) -> Tensor:
        x, y = rows.classes(16)
        free, _labels = rows.classes(64)
        with torch.no_grad():
            sure, guess = model(free + 0.05 * torch.randn_like(free)).softmax(1).max(1)
        strong = functional.cross_entropy(model(free + 0.3 * torch.randn_like(free)), guess, reduction="none")
        return functional.cross_entropy(model(x), y) + (strong * (sure > 0.9)).mean()

    fit(watch, model, sgd, loss_of, steps)


@loop(240, sum={"reduction": "sum"})
def large_losses(watch: Watch, steps: int, reduction: str = "mean") -> None:
    """Inputs and targets in thousands, nothing normalised, or a sum over rows instead of a mean."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(30 * x), 1000 * y, reduction=reduction)

    fit(watch, model, adam, loss_of, steps)


@loop(240)
def small_losses(watch: Watch, steps: int) -> None:
    """Targets of 1e-4: losses near 1e-9."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), 1e-4 * y)

    fit(watch, model, adam, loss_of, steps)


@loop(400)
def learned_to_the_end(watch: Watch, steps: int) -> None:
    """A linear problem without noise, all rows in each batch: the loss falls to rounding."""
    model = nn.Linear(8, 2)
    x = torch.randn(64, 8)
    y = x @ torch.randn(8, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit(watch, model, sgd, lambda _: functional.mse_loss(model(x), y), steps)


@loop(500)
def long_plateau(watch: Watch, steps: int) -> None:
    """A deep linear network near zero: nothing happens for long, and then it learns in a few steps."""
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
    for part in model:
        nn.init.normal_(part.weight, std=0.12)
    wanted = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.0]))
    sgd = torch.optim.SGD(model.parameters(), lr=0.02)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 8)
        return functional.mse_loss(model(x), x @ wanted)

    fit(watch, model, sgd, loss_of, steps, clip=1.0)


@loop(300)
def stabilised_logits(watch: Watch, steps: int) -> None:
    """A decoder with a z-loss and a long warm-up, as large models are pretrained."""
    model = Decoder(layers=3)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = warm_up(adam, 120)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        scores = model(ids)
        return next_token_loss(scores, ids) + 1e-4 * torch.logsumexp(scores, -1).square().mean()

    fit(watch, model, adam, loss_of, steps, schedule, 1.0)


@loop(240)
def recommender(watch: Watch, steps: int) -> None:
    """Users and items by power law, sparse gradients for the tables and another optimizer for the rest."""
    model = nn.ModuleDict(
        {
            "users": nn.Embedding(300, 16, sparse=True),
            "things": nn.Embedding(200, 16, sparse=True),
            "top": mlp(32, 32, 1),
        }
    )
    sparse = torch.optim.SparseAdam([*model["users"].parameters(), *model["things"].parameters()], lr=1e-3)
    dense = torch.optim.Adam(model["top"].parameters(), lr=1e-3)
    with watch(model, [sparse, dense]) as monitor:
        for _ in range(steps):
            user, item = (300 * torch.rand(64) ** 3).long(), (200 * torch.rand(64) ** 3).long()
            likes = ((user + item) % 3 == 0).float()
            score = model["top"](torch.cat([model["users"](user), model["things"](item)], 1))[:, 0]
            loss = functional.binary_cross_entropy_with_logits(score, likes)
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            monitor.log(loss=loss.item())


@loop(240)
def attacked_inputs(watch: Watch, steps: int) -> None:
    """Adversarial training: the attack runs in evaluation mode, the update in training mode."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4))
    sgd = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

    def loss_of(_: int) -> Tensor:
        x, y = bars(16)
        model.eval()
        off = torch.zeros_like(x, requires_grad=True)
        for _turn in range(3):
            slope = torch.autograd.grad(functional.cross_entropy(model(x + off), y), off)[0]
            off = (off + 0.05 * slope.sign()).clamp(-0.1, 0.1).detach().requires_grad_()
        model.train()
        return functional.cross_entropy(model(x + off.detach()), y)

    fit(watch, model, sgd, loss_of, steps)
