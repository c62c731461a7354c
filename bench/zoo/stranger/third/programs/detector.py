"""One-stage detection of coloured boxes: convolutions, batch norm, focal loss, boxes as offsets; SGD, milestones."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

SIZE, STRIDE, KINDS, BATCH = 32, 4, 3, 16
GRID = SIZE // STRIDE
MEAN, STD = torch.tensor([0.30, 0.35, 0.42]).view(3, 1, 1), torch.tensor([0.20, 0.22, 0.25]).view(3, 1, 1)
COLOURS = torch.tensor([[0.9, 0.3, 0.1], [0.1, 0.8, 0.3], [0.25, 0.3, 0.95]])


class Scenes:
    """Pictures with one to three boxes; each box has a colour by its kind and a frame."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.pictures = 0.3 + 0.12 * torch.randn(rows, 3, SIZE, SIZE, generator=generator)
        self.boxes: list[Tensor] = []
        self.kinds: list[Tensor] = []
        for row in range(rows):
            count = int(torch.randint(1, 4, (1,), generator=generator))
            sides = torch.randint(6, 15, (count, 2), generator=generator)
            corner = (torch.rand(count, 2, generator=generator) * (SIZE - sides)).long()
            kinds = torch.randint(0, KINDS, (count,), generator=generator)
            for (x, y), (w, h), kind in zip(corner.tolist(), sides.tolist(), kinds.tolist(), strict=True):
                colour = COLOURS[kind] + 0.1 * torch.randn(3, generator=generator)
                self.pictures[row, :, y : y + h, x : x + w] = colour[:, None, None]
                self.pictures[row, :, y + 1 : y + h - 1, x + 1 : x + w - 1] *= 0.8
            self.boxes.append(torch.cat([corner, corner + sides], dim=1).float())
            self.kinds.append(kinds)
        self.pictures = (self.pictures + 0.05 * torch.randn(self.pictures.shape, generator=generator)).clamp(0, 1)


def targets_of(boxes: list[Tensor], kinds: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """For each picture the kind at each place of the grid, the box as seen from there, and where there is one."""
    heat = torch.zeros(len(boxes), KINDS, GRID, GRID)
    offsets = torch.zeros(len(boxes), 4, GRID, GRID)
    for row, (found, names) in enumerate(zip(boxes, kinds, strict=True)):
        centre = (found[:, :2] + found[:, 2:]) / 2 / STRIDE
        column, line = centre.long().clamp(0, GRID - 1).unbind(1)
        heat[row, names, line, column] = 1.0
        size = (found[:, 2:] - found[:, :2]) / STRIDE
        where = centre - torch.stack([column, line], 1)
        offsets[row, :, line, column] = torch.cat([where, size.clamp(min=0.05).log()], dim=1).T
    return heat, offsets, heat.amax(1, keepdim=True)


def block(inside: int, outside: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class Detector(nn.Module):
    """Pictures to kinds and boxes on a grid."""

    def __init__(self, prior: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(block(3, 16, 1), block(16, 24, 2), block(24, 32, 2), block(32, 32, 1))
        self.neck = block(32, 32, 1)
        self.kind_head = nn.Conv2d(32, KINDS, 1)
        self.box_head = nn.Conv2d(32, 4, 1)
        nn.init.constant_(self.kind_head.bias, -math.log(49) if prior else 0.0)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.neck(self.backbone(pictures))
        return self.kind_head(hidden), self.box_head(hidden)


def focal(logits: Tensor, truth: Tensor, gamma: float = 2.0, alpha: float = 0.5) -> Tensor:
    each = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    share = torch.where(truth > 0, logits.sigmoid(), 1 - logits.sigmoid())
    return torch.where(truth > 0, alpha, 1 - alpha) * (1 - share) ** gamma * each


def main() -> None:
    job = Job(
        steps=260,
        faults=["boxes-xywh", "blue-for-red", "batch-of-two", "groups-swapped"],
        at_start=["prior-missing"],
        recipes=["plain", "several-sizes", "cosine-restarts"],
    )
    scenes = Scenes(900, job.seed)
    model = Detector(prior=job.fault != "prior-missing")
    groups = [
        {"params": list(model.backbone.parameters()), "lr": 0.01},
        {"params": [*model.neck.parameters(), *model.kind_head.parameters(), *model.box_head.parameters()], "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule: torch.optim.lr_scheduler.LRScheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [230], gamma=0.1)
    if job.recipe == "cosine-restarts":
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 65)
    order = torch.randperm(len(scenes.boxes))
    for step in range(job.steps):
        start = step * BATCH % (len(order) - BATCH)
        rows = order[start : start + (2 if job.on("batch-of-two", step) else BATCH)]
        pictures = scenes.pictures[rows]
        boxes, kinds = [scenes.boxes[row] for row in rows], [scenes.kinds[row] for row in rows]
        if job.on("boxes-xywh", step):
            boxes = [torch.cat([found[:, :2], found[:, 2:] - found[:, :2]], dim=1) for found in boxes]
        if job.on("blue-for-red", step):
            pictures = pictures.flip(1)
        if job.once("groups-swapped", step):
            saved = optimizer.state_dict()
            first, second = saved["param_groups"]
            for name in ("lr", "initial_lr"):
                first[name], second[name] = second[name], first[name]
            optimizer.load_state_dict(saved)
            schedule.base_lrs.reverse()
        heat, offsets, there = targets_of(boxes, kinds)
        pictures = (pictures - MEAN) / STD
        if job.recipe == "several-sizes":
            side = [32, 40, 24][step // 10 % 3]
            pictures = F.interpolate(pictures, size=(side, side), mode="bilinear", antialias=True)
        logits, found = model(pictures)
        if job.recipe == "several-sizes":
            logits, found = (F.interpolate(part, size=(GRID, GRID), mode="bilinear") for part in (logits, found))
        count = there.sum().clamp(min=1)
        kind_loss = focal(logits, heat).sum() / count
        box_loss = (F.smooth_l1_loss(found, offsets, reduction="none") * there).sum() / count
        loss = kind_loss + 0.5 * box_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        job.log(step, loss.item(), kinds=kind_loss.item(), boxes=box_loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
