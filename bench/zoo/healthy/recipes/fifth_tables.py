"""Loops of a fifth round on tables, series and stored moves.

Written before anybody looked at what rules say of them.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.fifth_control import follow
from zoo.healthy.recipes.fifth_examples import in_epochs
from zoo.healthy.recipes.samples import Table, fit, mlp

Tensor = torch.Tensor
schedules = torch.optim.lr_scheduler


@loop(1000)
def fifth_bag_of_words(watch: Watch, steps: int) -> None:
    """Texts of different lengths as bags of words; SGD with a rate of 4, divided by ten when accuracy falls."""
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(200, 24), "head": nn.Linear(24, 4)})
    sgd = torch.optim.SGD(model.parameters(), lr=4.0)
    schedule = schedules.StepLR(sgd, 400, 0.1)

    def loss_of(_: int) -> Tensor:
        label = torch.randint(0, 4, (16,))
        lengths = torch.randint(4, 24, (16,))
        words = [torch.where(torch.rand(int(n)) < 0.4, y * 50, 0) + torch.randint(0, 50, (int(n),))
                 for n, y in zip(lengths, label, strict=True)]  # fmt: skip
        starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
        return functional.cross_entropy(model["head"](model["bag"](torch.cat(words), starts)), label)

    fit(watch, model, sgd, loss_of, steps, schedule, 0.1)


@loop(800)
def fifth_short_last_batch(watch: Watch, steps: int) -> None:
    """Thirty-three rows in batches of 16: each epoch ends with a batch of one."""
    model = mlp(12, 48, 3)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    batches = in_epochs(Table().batch(33), 16)

    def loss_of(_: int) -> Tensor:
        x, y = next(batches)
        return functional.mse_loss(model(x + 0.1 * torch.randn_like(x)), y)

    fit(watch, model, adam, loss_of, steps)


@loop(1200)
def fifth_forecast(watch: Watch, steps: int) -> None:
    """Dilated convolutions over noisy seasons; the rate is halved when validation stops falling."""
    model = nn.Sequential(
        nn.Conv1d(1, 12, 3, dilation=1), nn.ReLU(), nn.Conv1d(12, 12, 3, dilation=2), nn.ReLU(),
        nn.Conv1d(12, 12, 3, dilation=4), nn.ReLU(), nn.Conv1d(12, 1, 3),
    )  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = schedules.ReduceLROnPlateau(adam, factor=0.5, patience=4)
    time = torch.arange(700.0)
    long = (time / 7).sin() + 0.5 * (time / 31).sin() + 0.2 * torch.randn(700)

    def error(low: int, high: int, size: int) -> Tensor:
        rows = torch.stack([long[at : at + 25] for at in torch.randint(low, high, (size,)).tolist()])
        return functional.mse_loss(model(rows[:, None, :-1])[:, 0, -1], rows[:, -1])

    with watch(model, adam) as monitor:
        for step in range(steps):
            loss = error(0, 500, 32)
            adam.zero_grad()
            loss.backward()
            adam.step()
            numbers = {"loss": loss.item()}
            if step % 50 == 49:
                with torch.no_grad():
                    numbers["val_loss"] = error(500, 674, 64).item()
                schedule.step(numbers["val_loss"])
            monitor.log(**numbers)


@loop(800)
def fifth_worlds(watch: Watch, steps: int) -> None:
    """An ensemble that predicts what comes next and how sure it is: bounds on the variance are learned too."""

    class Member(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(5, 32, 32, 8, act=nn.SiLU)
            self.high, self.low = nn.Parameter(torch.full((4,), 0.5)), nn.Parameter(torch.full((4,), -8.0))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean, log = self.body(x).chunk(2, 1)
            log = self.high - functional.softplus(self.high - log)
            return mean, self.low + functional.softplus(log - self.low)

    members = nn.ModuleList(Member() for _ in range(3))
    adam = torch.optim.Adam(members.parameters(), lr=1e-3, weight_decay=3e-5)
    turn = torch.linalg.qr(torch.randn(4, 4))[0]

    def loss_of(_: int) -> Tensor:
        losses = []
        for member in members:
            x = torch.randn(32, 5)
            wanted = 0.9 * x[:, :4] @ turn + 0.3 * x[:, 4:].tanh() + 0.05 * torch.randn(32, 4)
            mean, log = member(x)
            losses.append(((mean - wanted) ** 2 * (-log).exp() + log).mean())
            losses.append(0.01 * (member.high.sum() - member.low.sum()))
        return torch.stack(losses).sum()

    fit(watch, members, adam, loss_of, steps)


@loop(900)
def fifth_expectiles(watch: Watch, steps: int) -> None:
    """Implicit Q-learning from stored moves: expectile values, twin critics, a policy weighted by advantage."""
    q, value, actor = mlp(5, 32, 32, 1), mlp(3, 32, 32, 1), mlp(3, 32, 2)
    target = copy.deepcopy(q)
    parts = {"q": q, "value": value, "actor": actor}
    adams = {name: torch.optim.Adam(part.parameters(), lr=3e-4) for name, part in parts.items()}
    states, actions = torch.randn(1500, 3), torch.randn(1500, 2)
    afters = 0.9 * states + 0.3 * torch.cat([actions, actions[:, :1]], 1) + 0.1 * torch.randn(1500, 3)
    rewards = -afters.square().sum(1, keepdim=True)
    batches = in_epochs((states, actions, afters, rewards), 64, is_last_dropped=True)
    with watch(nn.ModuleDict(parts), list(adams.values())) as monitor:
        for _ in range(steps):
            state, action, after, reward = next(batches)
            both = torch.cat([state, action], 1)
            with torch.no_grad():
                known = target(both)
            gain = known - value(state)
            loss_v = ((gain < 0).float() - 0.7).abs().mul(gain**2).mean()
            with torch.no_grad():
                wanted = reward + 0.9 * value(after)
            loss_q = functional.mse_loss(q(both), wanted)
            weight = (gain.detach() * 2).exp().clamp(max=20)
            loss_a = (weight * (actor(state) - action).square().sum(1, keepdim=True)).mean()
            for name, loss in (("value", loss_v), ("q", loss_q), ("actor", loss_a)):
                adams[name].zero_grad()
                loss.backward()
                adams[name].step()
            follow(target, q, 0.005)
            monitor.log(value_loss=loss_v.item(), q_loss=loss_q.item(), actor_loss=loss_a.item())


@loop(900)
def fifth_sparse_weights(watch: Watch, steps: int) -> None:
    """Proximal steps: after each update all weights shrink by a little, and most end at zero."""
    model = mlp(24, 32, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = Table(24)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    def shrink(_: int) -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(functional.softshrink(weight, 1e-4))

    fit(watch, model, sgd, loss_of, steps, after=shrink)
