"""Contrastive learning, teachers and students, metrics."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Table, bars, mlp

Tensor = torch.Tensor


def _two_views(size: int) -> tuple[Tensor, Tensor]:
    image, _ = bars(size)
    flat = image.flatten(1)
    return flat + 0.1 * torch.randn_like(flat), flat * (0.8 + 0.4 * torch.rand(size, 1))


@loop(260, cold={"heat": 0.05})
def contrastive(watch: Watch, steps: int, heat: float = 0.2) -> None:
    """SimCLR: two views of each image through one network."""
    model = mlp(144, 64, 32, 16)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            one, two = (functional.normalize(model(view), dim=1) for view in _two_views(32))
            loss = functional.cross_entropy(one @ two.T / heat, torch.arange(32))
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def siamese(watch: Watch, steps: int) -> None:
    """SimSiam: a predictor on one side, a stopped gradient on the other; the loss is below zero."""
    model = nn.ModuleDict({"body": nn.Sequential(mlp(144, 64, 32), nn.BatchNorm1d(32)), "guess": mlp(32, 16, 32)})
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            one, two = (model["body"](view) for view in _two_views(32))
            loss = -0.5 * (
                functional.cosine_similarity(model["guess"](one), two.detach()).mean()
                + functional.cosine_similarity(model["guess"](two), one.detach()).mean()
            )
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            monitor.log(loss=loss.item())


@loop(260, watched_student={"is_whole": False})
def bootstrap(watch: Watch, steps: int, is_whole: bool = True) -> None:
    """BYOL: a teacher that is an average of the student, inside the watched model or beside it."""
    student, guess = nn.Sequential(mlp(144, 64, 32), nn.BatchNorm1d(32)), mlp(32, 16, 32)
    teacher = copy.deepcopy(student)
    parts = {"student": student, "guess": guess, **({"teacher": teacher} if is_whole else {})}
    model = nn.ModuleDict(parts)
    adam = torch.optim.Adam([*student.parameters(), *guess.parameters()], lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            one, two = _two_views(32)
            with torch.no_grad():
                wanted = teacher(two)
            loss = 2 - 2 * functional.cosine_similarity(guess(student(one)), wanted).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                    old.lerp_(new, 0.02)
            monitor.log(loss=loss.item())


@loop(260)
def distillation(watch: Watch, steps: int) -> None:
    """A student learns from a larger teacher that is frozen and in evaluation mode."""
    teacher, student, rows = mlp(12, 64, 4), mlp(12, 16, 4), Table(answers=4)
    model = nn.ModuleDict({"teacher": teacher.requires_grad_(False).eval(), "student": student})
    adam = torch.optim.Adam(student.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.classes(32)
            with torch.no_grad():
                wanted = (teacher(x) / 2).softmax(1)
            own = student(x)
            soft = functional.kl_div((own / 2).log_softmax(1), wanted, reduction="batchmean")
            loss = 4 * soft + functional.cross_entropy(own, y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260, wide={"margin": 1.0})
def triplets(watch: Watch, steps: int, margin: float = 0.2) -> None:
    """A margin that more and more triplets keep: the loss reaches zero in some batches."""
    model = mlp(144, 48, 8)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            image, label = bars(48)
            found = functional.normalize(model(image.flatten(1)), dim=1)
            apart = torch.cdist(found, found)
            same = label[:, None] == label[None]
            far = (apart * same).amax(1)
            near = (apart + 10 * same).amin(1)
            loss = functional.relu(far - near + margin).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def pictures_and_words(watch: Watch, steps: int) -> None:
    """CLIP: two towers and a temperature that is learned."""
    model = nn.Module()
    model.pictures, model.words = mlp(144, 48, 16), nn.Embedding(4, 16)
    model.heat = nn.Parameter(torch.tensor(2.0))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            image, label = bars(16)
            one = functional.normalize(model.pictures(image.flatten(1)), dim=1)
            two = functional.normalize(model.words(label), dim=1)
            scores = model.heat.exp().clamp(max=100) * one @ two.T
            loss = 0.5 * sum(functional.cross_entropy(found, torch.arange(16)) for found in (scores, scores.T))
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def mean_teacher(watch: Watch, steps: int) -> None:
    """Consistency with an averaged teacher, whose weight ramps up; labels for a few rows only."""
    student, rows = mlp(12, 32, 3), Table()
    teacher = torch.optim.swa_utils.AveragedModel(
        student, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
    )
    adam = torch.optim.Adam(student.parameters(), lr=2e-3)
    with watch(nn.ModuleDict({"student": student, "teacher": teacher}), adam) as monitor:
        for step in range(steps):
            x, y = rows.classes(48)
            own = student(x + 0.05 * torch.randn_like(x))
            with torch.no_grad():
                wanted = teacher(x).softmax(1)
            share = 3 * min(1.0, step / 100)
            loss = functional.cross_entropy(own[:12], y[:12]) + share * functional.mse_loss(own.softmax(1), wanted)
            adam.zero_grad()
            loss.backward()
            adam.step()
            teacher.update_parameters(student)
            monitor.log(loss=loss.item())


@loop(260)
def decorrelated(watch: Watch, steps: int) -> None:
    """Barlow Twins: the cross-correlation of two views becomes the identity."""
    model = nn.Sequential(mlp(144, 64, 16), nn.BatchNorm1d(16, affine=False))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            one, two = (model(view) for view in _two_views(64))
            cross = one.T @ two / 64
            loss = (cross.diagonal() - 1).square().sum() + 0.01 * (cross - cross.diagonal().diag()).square().sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())
