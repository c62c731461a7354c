"""Healthy trainings of a small convolutional network with unusual but legal recipes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, normalised
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, LRScheduler
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

CLASSES = 8
RECIPES = [
    "cyclic-rate",
    "warm-restarts",
    "sharpness-aware",
    "weight-averaging",
    "rmsprop",
    "large-decay",
    "tiny-batch",
    "growing-batch",
    "smoothing-then-off",
    "mixup",
    "dropout-schedule",
    "unfreezing",
    "averaged-iterates",
    "gradient-noise",
    "batch-order-by-difficulty",
]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(512, CLASSES),
    )


def optimizer_of(recipe: str, model: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """The optimizer and, for some recipes, its schedule."""
    if recipe == "cyclic-rate":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return optimizer, CyclicLR(optimizer, 0.002, 0.1, step_size_up=20, step_size_down=20)
    if recipe == "warm-restarts":
        adam = torch.optim.AdamW(model.parameters(), lr=5e-3)
        return adam, CosineAnnealingWarmRestarts(adam, 30, 2)
    if recipe == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, centered=True, momentum=0.5), None
    if recipe == "large-decay":
        return torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=2.0), None
    if recipe == "weight-averaging":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return optimizer, SWALR(optimizer, swa_lr=0.02, anneal_epochs=40)
    if recipe in ("sharpness-aware", "tiny-batch", "mixup"):
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4), None
    return torch.optim.Adam(model.parameters(), lr=2e-3), None


def main() -> None:
    job = Job(steps=320, recipes=RECIPES)
    recipe = job.recipe
    images, labels = class_images(4000, 16, 3, CLASSES, job.seed, noise=1.3)
    if recipe == "batch-order-by-difficulty":
        order = normalised(images).square().mean((1, 2, 3)).argsort()
        images, labels = images[order], labels[order]
    sampler = Sampler(len(images), job.seed)
    model = network()
    optimizer, schedule = optimizer_of(recipe, model)
    swa = AveragedModel(model) if recipe == "weight-averaging" else None
    fast = [p.detach().clone() for p in model.parameters()]
    if recipe == "unfreezing":
        for parameter in [*model[0].parameters(), *model[4].parameters()]:
            parameter.requires_grad_(False)
    for step in range(job.steps):
        size = {"tiny-batch": 3, "growing-batch": 8 * 2 ** (step // 80)}.get(recipe, 32)
        chosen = sampler.take(size)
        if recipe == "batch-order-by-difficulty":
            reach = int(len(images) * min(1.0, 0.2 + step / 250))
            chosen = chosen % reach
        batch, classes = normalised(images[chosen]), labels[chosen]
        if recipe == "dropout-schedule":
            model[9].p = 0.5 * min(1.0, step / 200)
        if recipe == "unfreezing" and step in (100, 200):
            for parameter in model[4 if step == 100 else 0].parameters():
                parameter.requires_grad_(True)

        def loss_of(batch: Tensor = batch, classes: Tensor = classes, step: int = step) -> Tensor:
            if recipe == "mixup":
                share = 0.5 + 0.5 * abs(math.sin(step))
                mixed = share * batch + (1 - share) * batch.flip(0)
                logits = model(mixed)
                return share * F.cross_entropy(logits, classes) + (1 - share) * F.cross_entropy(logits, classes.flip(0))
            smooth = 0.2 if recipe == "smoothing-then-off" and step < 200 else 0.0
            return F.cross_entropy(model(batch), classes, label_smoothing=smooth)

        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        if recipe == "sharpness-aware":
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()]
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.add_(move)
            optimizer.zero_grad()
            loss_of().backward()
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.sub_(move)
        if recipe == "gradient-noise":
            for parameter in model.parameters():
                parameter.grad += 0.01 / (1 + step) ** 0.55 * torch.randn_like(parameter)
        optimizer.step()
        if schedule is not None and (swa is None or step >= 160):
            schedule.step()
        if swa is not None and step >= 160 and step % 5 == 0:
            swa.update_parameters(model)
        if recipe == "averaged-iterates":
            with torch.no_grad():
                for slow, parameter in zip(fast, model.parameters(), strict=True):
                    if step % 6 == 5:
                        slow.lerp_(parameter, 0.5)
                        parameter.copy_(slow)
        job.log(step, loss.item())
    if swa is not None:
        update_bn([normalised(images[at : at + 100]) for at in range(0, 1000, 100)], swa)
    job.finish(model)


if __name__ == "__main__":
    main()
