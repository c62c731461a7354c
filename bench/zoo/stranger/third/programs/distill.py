"""A small compiled network learns from a teacher and from labels: softened outputs, mixed-up pictures, Lion."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, normalised
from torch import Tensor, nn

SIZE, CLASSES, BATCH, WARM = 12, 8, 32, 3.0


class Lion(torch.optim.Optimizer):
    """Moves each weight by the sign of a running mean of gradients."""

    def __init__(self, params: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                mean = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(p.grad, mean, group["betas"][0]).sign(), alpha=-group["lr"])
                mean.lerp_(p.grad, 1 - group["betas"][1])


class Student(nn.Module):
    """Patches mixed over places and over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 40, 3, 3)
        self.norm1, self.places = nn.LayerNorm(40), nn.Linear(16, 16)
        self.norm2, self.channels = nn.LayerNorm(40), nn.Sequential(nn.Linear(40, 80), nn.GELU(), nn.Linear(80, 40))
        self.head = nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(x.mean(1))


def make_teacher(pictures: Tensor, labels: Tensor) -> nn.Sequential:
    """A network that was trained before: here by least squares on many pictures."""
    teacher = nn.Sequential(
        nn.BatchNorm2d(1, momentum=0.3),
        nn.Flatten(),
        nn.Linear(SIZE**2, 400),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(400, CLASSES),
    )
    with torch.no_grad():
        teacher[0].running_mean.fill_(pictures.mean())
        teacher[0].running_var.fill_(pictures.var())
        hidden = F.relu(teacher.eval()[:3](pictures))
        hidden = torch.cat([hidden, torch.ones(len(hidden), 1)], dim=1)
        wanted = 8.0 * (F.one_hot(labels, CLASSES).float() - 1 / CLASSES)
        found = torch.linalg.solve(hidden.T @ hidden + 20.0 * torch.eye(401), hidden.T @ wanted)
        teacher[5].weight.copy_(found[:400].T)
        teacher[5].bias.copy_(found[400])
    return teacher.requires_grad_(False).eval()


def main() -> None:
    job = Job(
        steps=300,
        faults=["teacher-in-training", "probabilities-for-logs", "mean-of-all", "labels-not-mixed"],
        recipes=["plain", "cooler-later", "labels-only-late"],
    )
    bytes_, labels = class_images(5000, SIZE, 1, CLASSES, job.seed, noise=0.6)
    teacher = make_teacher(normalised(bytes_[2000:]), labels[2000:])
    sampler = Sampler(2000, job.seed)
    student = Student()
    compiled = torch.compile(student)
    optimizer = Lion(list(student.parameters()), lr=6e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=job.steps)
    for step in range(job.steps):
        if job.once("teacher-in-training", step):
            teacher.train()
        rows = sampler.take(BATCH)
        share = float(torch.distributions.Beta(0.8, 0.8).sample())
        shuffled = torch.randperm(BATCH)
        pictures = normalised(torch.lerp(bytes_[rows].float(), bytes_[rows][shuffled].float(), share))
        truth = F.one_hot(labels[rows], CLASSES).float()
        if not job.on("labels-not-mixed", step):
            truth = torch.lerp(truth, truth[shuffled], share)
        with torch.no_grad():
            taught = teacher(pictures)
        warm = WARM
        if job.recipe == "cooler-later":
            warm = 4.0 if step < 100 else 2.0 if step < 200 else 1.0
        logits = compiled(pictures)
        soft = F.softmax(taught / warm, dim=1)
        own = (logits / warm).log_softmax(1)
        if job.on("probabilities-for-logs", step):
            own = (logits / warm).softmax(1)
        reduction = "mean" if job.on("mean-of-all", step) else "batchmean"
        distance = F.kl_div(own, soft, reduction=reduction) * warm**2
        known = F.cross_entropy(logits, truth)
        weight = 0.0 if job.recipe == "labels-only-late" and step >= 200 else 0.7
        loss = weight * distance + (1 - weight) * known
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        job.log(step, loss.item(), known=known.item())
    job.finish(student)


if __name__ == "__main__":
    main()
