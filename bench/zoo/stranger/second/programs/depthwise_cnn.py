"""A small MobileNet: depthwise convolutions and batch norm, SGD with a cosine schedule, an average of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from common import Job, class_images, normalised
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CLASSES, BATCH = 10, 32


class Pictures(Dataset):
    """Pictures with their class."""

    def __init__(self, rows: int, seed: int) -> None:
        images, self.labels = class_images(rows, 12, 3, CLASSES, seed, noise=2.0)
        self.images = normalised(images)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.images[row], self.labels[row]


def separable(inside: int, outside: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
        nn.BatchNorm2d(inside),
        nn.ReLU6(),
        nn.Conv2d(inside, outside, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU6(),
    )


class MobileNet(nn.Module):
    """Stem, three separable convolutions, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.features = nn.Sequential(separable(16, 32, 2), separable(32, 48, 1), separable(48, 64, 2))
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(self.stem(x)).mean((2, 3)))


def forever(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def augment(images: Tensor) -> Tensor:
    """Mirrors half of the pictures."""
    mirror = torch.rand(len(images)) < 0.5
    return torch.where(mirror[:, None, None, None], images.flip(-1), images)


def erase(images: Tensor, share: float) -> Tensor:
    """Blanks a square of each picture."""
    size = max(1, int(images.shape[-1] * share))
    images = images.clone()
    images[..., :size, :size] = 0
    return images


def main() -> None:
    job = Job(
        steps=280,
        faults=["sorted-by-class", "classes-renumbered", "schedule-turns-back", "momentum-high", "erasing-too-large"],
        at_start=["softmax-twice"],
        recipes=["plain", "progressive-resizing", "averaged-weights-swap", "cutmix"],
    )
    data = Pictures(3200, job.seed)
    shuffle = torch.Generator().manual_seed(job.seed)
    batches = forever(DataLoader(data, BATCH, shuffle=True, drop_last=True, generator=shuffle))
    in_order = data.labels.argsort(stable=True)
    renumbered = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(job.seed + 5))
    net = MobileNet()
    average = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for step in range(job.steps):
        at = step
        if job.on("schedule-turns-back", step):
            at = max(10, job.begin - 4 * (step - job.begin))
        rate = 0.1 * min(1.0, (at + 1) / 10) * 0.5 * (1 + math.cos(math.pi * at / job.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
            if job.on("momentum-high", step):
                group["momentum"] = 0.999
        images, labels = next(batches)
        if job.on("sorted-by-class", step):
            start = (step - job.begin) * BATCH % (len(data) - BATCH)
            rows = in_order[start : start + BATCH]
            images, labels = data.images[rows], data.labels[rows]
        images = augment(images)
        if job.on("classes-renumbered", step):
            labels = renumbered[labels]
        if job.on("erasing-too-large", step):
            images = erase(images, 0.9)
        if job.recipe == "progressive-resizing":
            size = 8 if step < 100 else 10 if step < 200 else 12
            images = F.interpolate(images, size=(size, size), mode="bilinear", antialias=True)
        if job.recipe == "cutmix":
            images[:, :, :6] = images.flip(0)[:, :, :6]
        logits = net(images)
        if job.fault == "softmax-twice":
            logits = logits.softmax(-1)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
        if job.recipe == "cutmix":
            loss = 0.5 * loss + 0.5 * F.cross_entropy(logits, labels.flip(0), label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
                if slow.is_floating_point():
                    slow.lerp_(fast, 0.05)
                else:
                    slow.copy_(fast)
        if job.recipe == "averaged-weights-swap" and step == 190:
            net.load_state_dict(average.state_dict())
        job.log(step, loss.item(), accuracy=(logits.argmax(1) == labels).float().mean().item())
    job.finish(net)


if __name__ == "__main__":
    main()
