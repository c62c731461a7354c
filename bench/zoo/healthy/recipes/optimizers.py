"""Optimizers that are not SGD or Adam, and loops that write weights themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, mlp, next_token_loss, text

Tensor = torch.Tensor


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, beta: float = 0.9, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(torch.lerp(weight.grad, mean, group["beta"]).sign(), alpha=group["lr"])
                mean.lerp_(weight.grad, 0.01)


class Muon(torch.optim.Optimizer):
    """Momentum that is made orthogonal by a few Newton-Schulz steps."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                mean.mul_(0.95).add_(weight.grad)
                x = mean / (mean.norm() + 1e-7)
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
                weight.sub_(x, alpha=group["lr"] * max(1, weight.shape[0] / weight.shape[1]) ** 0.5)


class ScheduleFree(torch.optim.Optimizer):
    """Gradients at a point between the fast weights and their average; `eval` swaps the average in."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.05, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": True})

    @torch.no_grad()
    def _swap(self, is_training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] is is_training:
                continue
            for weight in group["params"]:
                if "z" in self.state[weight]:
                    share = 1 - group["beta"] if is_training else 1 - 1 / group["beta"]
                    weight.lerp_(self.state[weight]["z"], share)
            group["train_mode"] = is_training

    def eval(self) -> None:
        self._swap(False)

    def train(self) -> None:
        self._swap(True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            share = 1 / (group["k"] + 1)
            for weight in group["params"]:
                fast = self.state[weight].setdefault("z", weight.clone())
                weight.lerp_(fast, share)
                weight.add_(weight.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                fast.sub_(weight.grad, alpha=group["lr"])
            group["k"] += 1


def _train(watch: Watch, steps: int, make: Callable[[nn.Module], torch.optim.Optimizer], batch: int = 32) -> None:
    model, rows = mlp(12, 32, 32, 3, act=nn.GELU), Table()
    optimizer = make(model)
    with watch(model, optimizer) as monitor:
        for _ in range(steps):
            x, y = rows.batch(batch)
            loss = functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())


@loop(260, decayed={"decay": 0.1})
def lion(watch: Watch, steps: int, decay: float = 0.0) -> None:
    """Lion on a table."""
    _train(watch, steps, lambda model: Lion(model.parameters(), 1e-3, decay=decay))


@loop(
    260,
    rmsprop={"name": "RMSprop", "lr": 1e-3},
    adagrad={"name": "Adagrad", "lr": 0.05},
    adadelta={"name": "Adadelta", "lr": 1.0},
    nadam={"name": "NAdam", "lr": 2e-3},
    radam={"name": "RAdam", "lr": 2e-3},
    adamax={"name": "Adamax", "lr": 2e-3},
    rprop={"name": "Rprop", "lr": 1e-3},
    asgd={"name": "ASGD", "lr": 0.05},
    nesterov={"name": "SGD", "lr": 0.05, "momentum": 0.9, "nesterov": True},
    plain={"name": "SGD", "lr": 0.1},
    amsgrad={"name": "AdamW", "lr": 2e-3, "amsgrad": True},
)
def torch_optimizer(watch: Watch, steps: int, name: str = "Adafactor", **options: Any) -> None:
    """One of torch's own optimizers on a table."""
    kind = getattr(torch.optim, name)
    _train(watch, steps, lambda model: kind(model.parameters(), **options), 256 if name == "Rprop" else 32)


@loop(240)
def muon(watch: Watch, steps: int) -> None:
    """Muon for the matrices of a decoder, AdamW for the rest."""
    model = Decoder()
    inner = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and "blocks" in name]
    others = [weight for name, weight in model.named_parameters() if weight.dim() != 2 or "blocks" not in name]
    both = [Muon(inner), torch.optim.AdamW(others, lr=2e-3)]
    with watch(model, both) as monitor:
        for _ in range(steps):
            ids = text(8)
            loss = next_token_loss(model(ids), ids)
            model.zero_grad()
            loss.backward()
            for optimizer in both:
                optimizer.step()
            monitor.log(loss=loss.item())


@loop(240, evaluated={"every": 40})
def schedule_free(watch: Watch, steps: int, every: int = 0) -> None:
    """Schedule-free SGD, which swaps weights around each evaluation."""
    model, rows = mlp(12, 32, 3), Table()
    optimizer = ScheduleFree(model.parameters())
    with watch(model, optimizer) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
            if every and step % every == every - 1:
                optimizer.eval()
                model.eval()
                with torch.no_grad():
                    x, y = rows.batch(64)
                    monitor.log(val_loss=functional.mse_loss(model(x), y).item())
                model.train()
                optimizer.train()


@loop(240, large={"reach": 0.2})
def sharpness_aware(watch: Watch, steps: int, reach: float = 0.05) -> None:
    """SAM: up the gradient, a second pass over the same batch, back, and an update."""
    model, rows = mlp(12, 32, 32, 3), Table()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            x, y = rows.classes(32)
            sgd.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                weights = list(model.parameters())
                norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
                moves = [weight.grad * (reach / (norm + 1e-12)) for weight in weights]
                for weight, move in zip(weights, moves, strict=True):
                    weight.add_(move)
            sgd.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for weight, move in zip(weights, moves, strict=True):
                    weight.sub_(move)
            sgd.step()
            monitor.log(loss=loss.item())


@loop(260)
def lookahead(watch: Watch, steps: int) -> None:
    """Every fifth update the weights go halfway back to the slow ones."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    slow = [weight.detach().clone() for weight in model.parameters()]
    with watch(model, adam) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            if step % 5 == 4:
                with torch.no_grad():
                    for kept, weight in zip(slow, model.parameters(), strict=True):
                        kept.lerp_(weight, 0.5)
                        weight.copy_(kept)
            monitor.log(loss=loss.item())


@loop(260, late={"start": 180})
def averaged_weights(watch: Watch, steps: int, start: int = 120) -> None:
    """SWA: a constant rate from `start` on, and at the end the average is what the model has."""
    model, rows = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)), Table()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, start)
    constant = torch.optim.swa_utils.SWALR(sgd, swa_lr=0.02, anneal_epochs=10)
    with watch(model, sgd) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            if step < start:
                schedule.step()
            else:
                averaged.update_parameters(model)
                constant.step()
            monitor.log(loss=loss.item())


@loop(260)
def evaluated_average(watch: Watch, steps: int) -> None:
    """An average of the weights is copied in to evaluate, and the weights are copied back."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    mean = copy.deepcopy(model.state_dict())
    with watch(model, adam) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            for name, value in model.state_dict().items():
                mean[name].lerp_(value, 0.02)
            monitor.log(loss=loss.item())
            if step % 50 == 49:
                own = copy.deepcopy(model.state_dict())
                model.load_state_dict(mean)
                with torch.no_grad():
                    x, y = rows.batch(64)
                    monitor.log(val_loss=functional.mse_loss(model(x), y).item())
                model.load_state_dict(own)


@loop(80, wolfe={"search": "strong_wolfe"})
def lbfgs(watch: Watch, steps: int, search: str | None = None) -> None:
    """L-BFGS: several passes over one batch in each update."""
    model, (x, y) = mlp(12, 16, 3, act=nn.Tanh), Table().batch(200)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4, line_search_fn=search)
    with watch(model, optimizer) as monitor:
        for _ in range(steps):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            monitor.log(loss=optimizer.step(closure).item())


@loop(200, first={"is_second_order": False})
def maml(watch: Watch, steps: int, is_second_order: bool = True) -> None:
    """MAML: a step inside the loss, on a task of its own."""
    model = mlp(1, 24, 24, 1, act=nn.Tanh)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            total = torch.zeros(())
            for _ in range(4):
                size, phase = torch.rand(()) * 2 + 0.5, torch.rand(()) * 3
                x = torch.rand(20, 1) * 6 - 3
                y = size * torch.sin(x + phase)
                weights = dict(model.named_parameters())
                loss = functional.mse_loss(torch.func.functional_call(model, weights, x[:10]), y[:10])
                slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=is_second_order)
                inner = {
                    name: weight - 0.02 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)
                }
                total = total + functional.mse_loss(torch.func.functional_call(model, inner, x[10:]), y[10:]) / 4
            adam.zero_grad()
            total.backward()
            adam.step()
            monitor.log(loss=total.item())


@loop(200)
def reptile(watch: Watch, steps: int) -> None:
    """Reptile: the loop itself moves the weights after five inner updates of a fresh optimizer."""
    model = mlp(1, 24, 1, act=nn.Tanh)
    with watch(model) as monitor:
        for _ in range(steps // 5):
            before = [weight.detach().clone() for weight in model.parameters()]
            size, phase = torch.rand(()) * 2 + 0.5, torch.rand(()) * 3
            sgd = torch.optim.SGD(model.parameters(), lr=0.02)
            for _ in range(5):
                x = torch.rand(20, 1) * 6 - 3
                loss = functional.mse_loss(model(x), size * torch.sin(x + phase))
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                monitor.log(loss=loss.item())
            with torch.no_grad():
                for old, weight in zip(before, model.parameters(), strict=True):
                    weight.copy_(old + 0.3 * (weight - old))


@loop(260)
def clamped_weights(watch: Watch, steps: int) -> None:
    """Weights that the loop keeps above zero."""
    model, rows = nn.Linear(12, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x.abs()), y.abs())
            adam.zero_grad()
            loss.backward()
            adam.step()
            with torch.no_grad():
                model.weight.clamp_(min=0)
            monitor.log(loss=loss.item())
