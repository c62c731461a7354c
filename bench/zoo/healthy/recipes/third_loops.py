"""Loops of a third round, by how they train: written together, before anybody looked at what rules say of them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, fit, mlp, next_token_loss, text

Tensor = torch.Tensor


@loop(300)
def carried_state(watch: Watch, steps: int) -> None:
    """An LSTM over one long text: its state goes from step to step, plain SGD with a large rate and tight clipping."""
    model = nn.ModuleDict(
        {"words": nn.Embedding(24, 24), "rnn": nn.LSTM(24, 48, batch_first=True), "out": nn.Linear(48, 24)}
    )
    sgd = torch.optim.SGD(model.parameters(), lr=2.0)
    long = text(8, 16 * steps + 1)
    state: tuple[Tensor, Tensor] | None = None

    def loss_of(step: int) -> Tensor:
        nonlocal state
        ids = long[:, 16 * step : 16 * step + 17]
        found, kept = model["rnn"](model["words"](ids[:, :-1]), state)
        state = kept[0].detach(), kept[1].detach()
        return functional.cross_entropy(model["out"](found).flatten(0, 1), ids[:, 1:].flatten())

    fit(watch, model, sgd, loss_of, steps, clip=0.25)


@loop(240)
def factored_moments(watch: Watch, steps: int) -> None:
    """Adafactor."""
    model = Decoder()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        return next_token_loss(model(ids), ids)

    fit(watch, model, optimizer, loss_of, steps)


class Sophia(torch.optim.Optimizer):
    """Clipped by an estimate of the curvature that is renewed every tenth step."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def note_curvature(self, weight: Tensor, found: Tensor) -> None:
        self.state[weight].setdefault("hessian", torch.zeros_like(weight)).lerp_(found.clamp(min=0), 0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                mean = state.setdefault("mean", torch.zeros_like(weight)).lerp_(weight.grad, 0.1)
                size = state.setdefault("hessian", torch.zeros_like(weight)) + 1e-2
                weight.sub_((mean / size).clamp(-1, 1), alpha=group["lr"])


@loop(240)
def curvature(watch: Watch, steps: int) -> None:
    """A second-order optimizer: every tenth step a product with the Hessian takes a further backward pass."""
    model, rows = mlp(12, 32, 3, act=nn.Tanh), Table()
    optimizer = Sophia(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            if step % 10 == 0:
                weights = list(model.parameters())
                slopes = torch.autograd.grad(loss, weights, create_graph=True)
                ways = [torch.randn_like(weight) for weight in weights]
                whole = sum((slope * way).sum() for slope, way in zip(slopes, ways, strict=True))
                bends = torch.autograd.grad(whole, weights, retain_graph=True)
                for weight, bend, way in zip(weights, bends, ways, strict=True):
                    optimizer.note_curvature(weight, bend * way)
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


@loop(240)
def more_accumulation(watch: Watch, steps: int) -> None:
    """The number of micro-steps doubles twice: 1, 2, 4."""
    model = Decoder()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            parts = 1 if step < 80 else 2 if step < 160 else 4
            adam.zero_grad()
            whole = 0.0
            for _ in range(parts):
                ids = text(4)
                loss = next_token_loss(model(ids), ids) / parts
                loss.backward()
                whole += loss.item()
            adam.step()
            monitor.log(loss=whole)


@loop(300)
def restarts_by_hand(watch: Watch, steps: int) -> None:
    """The loop sets a cosine with restarts itself, twice as long each time."""
    model, rows = mlp(12, 48, 3), Table()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_of(step: int) -> Tensor:
        begin, length = (0, 40) if step < 40 else (40, 80) if step < 120 else (120, 180)
        sgd.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * (step - begin) / length)) + 1e-4
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    fit(watch, model, sgd, loss_of, steps)


@loop(280)
def falling_dropout(watch: Watch, steps: int) -> None:
    """Dropout falls from 0.5 to 0 along a line."""
    part = nn.Dropout(0.5)
    model, rows = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), part, nn.Linear(64, 3)), Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(step: int) -> Tensor:
        part.p = 0.5 * max(0.0, 1 - step / 200)
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    fit(watch, model, adam, loss_of, steps)


@loop(320)
def stages_with_validation(watch: Watch, steps: int) -> None:
    """Epochs over a loader with a last short batch; validation after each, and MultiStepLR."""
    x, y = bars(150)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16, shuffle=True)
    other, wanted = bars(100)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(200, 4)
    )
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(sgd, [16, 24])
    with watch(model, sgd) as monitor:
        for _epoch in range(steps // 10):
            model.train()
            for rows, labels in loader:
                loss = functional.cross_entropy(model(rows), labels)
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                monitor.log(loss=loss.item())
            schedule.step()
            model.eval()
            with torch.no_grad():
                found = model(other)
            monitor.log(
                val_loss=functional.cross_entropy(found, wanted).item(),
                accuracy=float((found.argmax(1) == wanted).float().mean()),
            )


@loop(260)
def put_back_in_the_middle(watch: Watch, steps: int) -> None:
    """A checkpoint of model, optimizer and schedule is saved and loaded again in the middle of the loop."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    parts = (model, adam, schedule)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    def after(step: int) -> None:
        if step in (90, 180):
            kept = [copy.deepcopy(part.state_dict()) for part in parts]
            for part, saved in zip(parts, kept, strict=True):
                part.load_state_dict(saved)

    fit(watch, model, adam, loss_of, steps, schedule, after=after)


@loop(260)
def delayed_policy(watch: Watch, steps: int) -> None:
    """TD3: two critics, targets that follow, and an actor that moves every second step."""
    model = nn.ModuleDict({"actor": mlp(3, 24, 1), "one": mlp(4, 24, 1), "two": mlp(4, 24, 1)})
    targets = copy.deepcopy(model).requires_grad_(False)
    critics = torch.optim.Adam([*model["one"].parameters(), *model["two"].parameters()], lr=1e-3)
    actor = torch.optim.Adam(model["actor"].parameters(), lr=1e-3)
    with watch(model, [critics, actor]) as monitor:
        for step in range(steps):
            state, action = torch.randn(32, 3), torch.rand(32, 1) * 2 - 1
            after = 0.9 * state + 0.3 * action
            reward = -(after[:, :1] ** 2) - 0.1 * action**2
            with torch.no_grad():
                then = targets["actor"](after).tanh() + 0.1 * torch.randn(32, 1)
                pair = torch.cat([after, then], 1)
                wanted = reward + 0.9 * torch.minimum(targets["one"](pair), targets["two"](pair))
            pair = torch.cat([state, action], 1)
            loss = functional.mse_loss(model["one"](pair), wanted) + functional.mse_loss(model["two"](pair), wanted)
            critics.zero_grad()
            loss.backward()
            critics.step()
            if step % 2:
                gain = model["one"](torch.cat([state, model["actor"](state).tanh()], 1)).mean()
                actor.zero_grad()
                (-gain).backward()
                actor.step()
                with torch.no_grad():
                    for slow, fast in zip(targets.parameters(), model.parameters(), strict=True):
                        slow.lerp_(fast, 0.01)
            monitor.log(loss=loss.item())


@loop(300)
def policy_gradient(watch: Watch, steps: int) -> None:
    """REINFORCE with a running baseline and an entropy term: an objective around zero."""
    model = mlp(4, 32, 3)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    usual = 0.0

    def loss_of(_: int) -> Tensor:
        nonlocal usual
        state = torch.randn(64, 4)
        chosen = torch.distributions.Categorical(logits=model(state))
        action = chosen.sample()
        reward = (action == state[:, :3].argmax(1)).float() + 0.3 * torch.randn(64)
        usual = 0.95 * usual + 0.05 * float(reward.mean())
        return -(chosen.log_prob(action) * (reward - usual)).mean() - 0.01 * chosen.entropy().mean()

    fit(watch, model, adam, loss_of, steps)


@loop(260)
def lazy_penalty(watch: Watch, steps: int) -> None:
    """A GAN whose critic gets the R1 penalty every sixteenth step."""
    model = nn.ModuleDict({"maker": mlp(8, 32, 2), "judge": mlp(2, 32, 1)})
    maker = torch.optim.Adam(model["maker"].parameters(), lr=1e-3, betas=(0.0, 0.99))
    judge = torch.optim.Adam(model["judge"].parameters(), lr=1e-3, betas=(0.0, 0.99))
    with watch(model, [maker, judge]) as monitor:
        for step in range(steps):
            angle = 2 * math.pi * torch.rand(32, 1)
            real = torch.cat([angle.cos(), angle.sin()], 1)
            made = model["maker"](torch.randn(32, 8))
            loss = (
                functional.softplus(-model["judge"](real)).mean()
                + functional.softplus(model["judge"](made.detach())).mean()
            )
            judge.zero_grad()
            loss.backward()
            if step % 16 == 0:
                real.requires_grad_()
                slope = torch.autograd.grad(model["judge"](real).sum(), real, create_graph=True)[0]
                (16 * 0.5 * slope.square().sum(1).mean()).backward()
            judge.step()
            fooled = functional.softplus(-model["judge"](model["maker"](torch.randn(32, 8)))).mean()
            maker.zero_grad()
            fooled.backward()
            maker.step()
            monitor.log(loss_d=loss.item(), loss_g=fooled.item())


@loop(260)
def two_students(watch: Watch, steps: int) -> None:
    """Deep mutual learning: two networks teach each other, each with an optimizer."""
    model = nn.ModuleDict({"one": mlp(12, 32, 3), "two": mlp(12, 48, 3)})
    rows = Table()
    both = {name: torch.optim.Adam(part.parameters(), lr=1e-3) for name, part in model.items()}
    with watch(model, list(both.values())) as monitor:
        for _ in range(steps):
            x, y = rows.classes(32)
            whole = 0.0
            for name, other in (("one", "two"), ("two", "one")):
                found = model[name](x)
                with torch.no_grad():
                    taught = model[other](x).softmax(1)
                loss = functional.cross_entropy(found, y) + functional.kl_div(
                    found.log_softmax(1), taught, reduction="batchmean"
                )
                both[name].zero_grad()
                loss.backward()
                both[name].step()
                whole += loss.item()
            monitor.log(loss=whole)
