"""Loops of a third round, in which the loop writes weights or gradients: written before rules met them."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, fit, mlp, next_token_loss, text

Tensor = torch.Tensor


@loop(260)
def federated(watch: Watch, steps: int) -> None:
    """Every twentieth step the weights become the mean of several clients that were trained elsewhere."""
    model, rows = mlp(12, 32, 3), Table()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)

    def after(step: int) -> None:
        if step % 20 == 19:
            clients = [copy.deepcopy(model) for _ in range(3)]
            for client in clients:
                inner = torch.optim.SGD(client.parameters(), lr=0.05)
                for _turn in range(5):
                    x, y = rows.batch(32)
                    inner.zero_grad()
                    functional.mse_loss(client(x), y).backward()
                    inner.step()
            states = [client.state_dict() for client in clients]
            model.load_state_dict({key: sum(state[key] for state in states) / 3 for key in states[0]})

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    fit(watch, model, sgd, loss_of, steps, after=after)


@loop(260)
def frozen_statistics(watch: Watch, steps: int) -> None:
    """Fine-tuning of a CNN with its normalisation kept in evaluation mode, and a new head with a larger rate."""
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    )
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(72, 4))
    with torch.no_grad():
        for _ in range(20):
            body(bars(16)[0])
    groups = [{"params": body.parameters(), "lr": 1e-4}, {"params": model[2].parameters(), "lr": 1e-3}]
    adam = torch.optim.AdamW(groups)

    def loss_of(_: int) -> Tensor:
        model.train()
        for part in body.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()
        x, y = bars(16)
        return functional.cross_entropy(model(x), y)

    fit(watch, model, adam, loss_of, steps)


@loop(260)
def gradients_by_hand(watch: Watch, steps: int) -> None:
    """PCGrad: gradients of two tasks are taken apart, projected, and written into `.grad` by the loop."""
    model, rows = mlp(12, 32, 6), Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    weights = list(model.parameters())
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            found = model(x)
            losses = functional.mse_loss(found[:, :3], y), functional.mse_loss(found[:, 3:], -y.roll(1, 1))
            one = torch.autograd.grad(losses[0], weights, retain_graph=True)
            two = torch.autograd.grad(losses[1], weights)
            for weight, first, second in zip(weights, one, two, strict=True):
                along = (first * second).sum()
                if along < 0:
                    first = first - along / second.square().sum() * second
                weight.grad = first + second
            adam.step()
            monitor.log(loss=float(losses[0] + losses[1]))


@loop(240)
def evolved(watch: Watch, steps: int) -> None:
    """Evolution strategies: no backward pass, the loop writes an estimate into `.grad`."""
    model, rows = mlp(12, 16, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    weights = list(model.parameters())
    with watch(model, adam) as monitor, torch.no_grad():
        for _ in range(steps):
            x, y = rows.batch(32)
            for weight in weights:
                weight.grad = torch.zeros_like(weight)
            before = functional.mse_loss(model(x), y)
            for _turn in range(4):
                ways = [torch.randn_like(weight) for weight in weights]
                for weight, way in zip(weights, ways, strict=True):
                    weight.add_(way, alpha=0.02)
                up = functional.mse_loss(model(x), y)
                for weight, way in zip(weights, ways, strict=True):
                    weight.sub_(way, alpha=0.02)
                    weight.grad.add_(way, alpha=float(up - before) / 0.08)
            adam.step()
            monitor.log(loss=float(before))


@loop(260)
def langevin(watch: Watch, steps: int) -> None:
    """SGLD: the loop adds noise to the weights after each update."""
    model, rows = mlp(12, 24, 3), Table()
    sgd = torch.optim.SGD(model.parameters(), lr=0.02)

    @torch.no_grad()
    def after(_: int) -> None:
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=1e-3)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    fit(watch, model, sgd, loss_of, steps, after=after)


@loop(280)
def sorted_by_length(watch: Watch, steps: int) -> None:
    """Buckets: batches hold sequences of one length, long ones in small batches, in an order drawn anew."""
    model = Decoder()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        length = (6, 12, 24, 48)[int(torch.randint(0, 4, ()))]
        ids = text(192 // length, length)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, clip=1.0)


@loop(260)
def units_renewed(watch: Watch, steps: int) -> None:
    """A codebook whose unused entries are set to rows of the batch, every thirtieth step."""
    model = nn.ModuleDict({"into": mlp(12, 24, 8), "codes": nn.Embedding(16, 8), "back": mlp(8, 24, 12)})
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    used = torch.zeros(16)
    with watch(model, adam) as monitor:
        for step in range(steps):
            x = torch.randn(32, 4) @ torch.ones(4, 12) / 2 + 0.3 * torch.randn(32, 12)
            found = model["into"](x)
            nearest = torch.cdist(found, model["codes"].weight).argmin(1)
            used += torch.bincount(nearest, minlength=16)
            code = model["codes"](nearest)
            loss = functional.mse_loss(model["back"](found + (code - found).detach()), x)
            loss = loss + functional.mse_loss(code, found.detach()) + 0.25 * functional.mse_loss(found, code.detach())
            adam.zero_grad()
            loss.backward()
            adam.step()
            if step % 30 == 29:
                with torch.no_grad():
                    unused = (used < 1).nonzero()[:, 0]
                    model["codes"].weight[unused] = found[: len(unused)]
                used.zero_()
            monitor.log(loss=loss.item())


@loop(240)
def two_backwards(watch: Watch, steps: int) -> None:
    """Two losses, each with a backward pass of its own over a shared trunk."""
    model = nn.ModuleDict({"trunk": mlp(12, 32, 32), "one": nn.Linear(32, 3), "two": nn.Linear(32, 12)})
    rows = Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            shared = model["trunk"](x).relu()
            first, second = functional.mse_loss(model["one"](shared), y), functional.mse_loss(model["two"](shared), x)
            adam.zero_grad()
            first.backward(retain_graph=True)
            second.backward()
            adam.step()
            monitor.log(loss=(first + second).item(), loss_rebuilt=second.item())
