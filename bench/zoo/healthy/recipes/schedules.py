"""Rates, batches and stages that change on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler as schedules

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Table, bars, mlp

Optimizer = torch.optim.Optimizer


def _cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip


MADE: dict[str, Callable[[Optimizer, int], Any]] = {
    "milestones": lambda sgd, steps: schedules.MultiStepLR(sgd, [steps // 2, 3 * steps // 4], 0.1),
    "stairs": lambda sgd, steps: schedules.StepLR(sgd, steps // 5, 0.5),
    "one_cycle": lambda sgd, steps: schedules.OneCycleLR(sgd, 0.2, total_steps=steps),
    "restarts": lambda sgd, steps: schedules.CosineAnnealingWarmRestarts(sgd, steps // 4, 2),
    "cyclic": lambda sgd, steps: schedules.CyclicLR(sgd, 0.005, 0.1, steps // 8),
    "exponential": lambda sgd, steps: schedules.ExponentialLR(sgd, 0.985),
    "steep": lambda sgd, steps: schedules.ExponentialLR(sgd, 0.95),
    "polynomial": lambda sgd, steps: schedules.PolynomialLR(sgd, steps, 2.0),
    "joined": lambda sgd, steps: schedules.SequentialLR(
        sgd, [schedules.LinearLR(sgd, 0.01, 1.0, 20), schedules.CosineAnnealingLR(sgd, steps - 20)], [20]
    ),
    "constant": lambda sgd, steps: schedules.ConstantLR(sgd, 0.1, 60),
    "root": lambda sgd, steps: schedules.LambdaLR(sgd, lambda at: min((at + 1) / 40, (40 / (at + 1)) ** 0.5)),
}


@loop(
    240,
    stairs={"kind": "stairs"},
    one_cycle={"kind": "one_cycle"},
    restarts={"kind": "restarts"},
    cyclic={"kind": "cyclic"},
    exponential={"kind": "exponential"},
    steep={"kind": "steep"},
    polynomial={"kind": "polynomial"},
    joined={"kind": "joined"},
    constant={"kind": "constant"},
    root={"kind": "root"},
)
def scheduled(watch: Watch, steps: int, kind: str = "milestones") -> None:
    """A CNN with one of torch's schedules."""
    model = _cnn()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = MADE[kind](sgd, steps)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            x, y = bars(24)
            loss = functional.cross_entropy(model(x), y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            schedule.step()
            monitor.log(loss=loss.item())


@loop(300)
def plateau_schedule(watch: Watch, steps: int) -> None:
    """ReduceLROnPlateau on a validation loss."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = schedules.ReduceLROnPlateau(adam, factor=0.1, patience=1)
    with watch(model, adam) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())
            if step % 20 == 19:
                model.eval()
                with torch.no_grad():
                    x, y = rows.batch(128)
                    checked = functional.mse_loss(model(x), y)
                model.train()
                schedule.step(checked)
                monitor.log(val_loss=checked.item())


@loop(260, by_hand_drop={"drop": True})
def rate_by_hand(watch: Watch, steps: int, drop: bool = False) -> None:
    """The loop sets the rate itself: a line up, then a line down, or a drop by ten."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            late = 1 - step / steps if not drop else (1.0 if step < 150 else 0.1)
            adam.param_groups[0]["lr"] = 2e-3 * min((step + 1) / 30, late)
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260, doubled={"is_doubled": True})
def growing_batches(watch: Watch, steps: int, is_doubled: bool = False) -> None:
    """A batch that grows from 4 to 64, in a line or by doubling."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            size = 4 * 2 ** (5 * step // steps) if is_doubled else 4 + 60 * step // steps
            x, y = rows.batch(size)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def curriculum(watch: Watch, steps: int) -> None:
    """Easy rows first: their size grows over the first half."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            x, _ = rows.batch(32)
            x = x * min(1.0, 0.3 + 1.4 * step / steps)
            loss = functional.mse_loss(model(x), torch.tanh(x @ rows.one) @ rows.two)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(240)
def longer_sequences(watch: Watch, steps: int) -> None:
    """The length of the sequences doubles twice."""
    from zoo.healthy.recipes.samples import Decoder, next_token_loss, text

    model = Decoder()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            ids = text(8, 12 * 2 ** (3 * step // steps))
            loss = next_token_loss(model(ids), ids)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def thawed(watch: Watch, steps: int) -> None:
    """A head alone at first; two blocks are thawed one after the other, each in a group of its own."""
    model, rows = mlp(12, 32, 32, 3), Table()
    for number in (0, 2):
        model[number].requires_grad_(False)
    adam = torch.optim.Adam(model[4].parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            if step in (90, 180):
                block = model[2 if step == 90 else 0].requires_grad_()
                adam.add_param_group({"params": list(block.parameters()), "lr": 5e-4})
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(300)
def two_stages(watch: Watch, steps: int) -> None:
    """Pretraining, then another optimizer with a smaller rate and other rows."""
    model = mlp(12, 32, 3)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            if step == 180:
                adam = torch.optim.Adam(model.parameters(), lr=2e-4)
            x, y = Table(seed=5 if step < 180 else 6).batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def decay_schedule(watch: Watch, steps: int) -> None:
    """DINO's: weight decay rises along a cosine while the rate falls."""
    import math

    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.04)
    schedule = schedules.CosineAnnealingLR(adam, steps)
    with watch(model, adam) as monitor:
        for step in range(steps):
            adam.param_groups[0]["weight_decay"] = 0.4 - 0.36 * 0.5 * (1 + math.cos(math.pi * step / steps))
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            monitor.log(loss=loss.item())


@loop(260, single={"rows_kept": 24})
def epochs(watch: Watch, steps: int, rows_kept: int = 200) -> None:
    """A small table again and again, shuffled; the last batch of an epoch is short."""
    model, (x, y) = mlp(12, 32, 3), Table().batch(rows_kept)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    done = 0
    with watch(model, adam) as monitor:
        while done < steps:
            for at in torch.randperm(rows_kept).split(24):
                loss = functional.mse_loss(model(x[at]), y[at])
                adam.zero_grad()
                loss.backward()
                adam.step()
                monitor.log(loss=loss.item())
                done += 1
