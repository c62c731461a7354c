"""A small residual network with batch norm on synthetic images: SGD with Nesterov momentum, milestones, flips."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, flip_bit, normalised
from torch import Tensor, nn

CLASSES = 10


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )


def main() -> None:
    job = Job(
        steps=320,
        faults=[
            "bytes-not-scaled",
            "zero-grad-missing",
            "step-twice",
            "optimizer-new",
            "norm-bias-low",
            "shard-corrupt",
            "gradient-bit",
            "norm-eval",
            "rows-duplicated",
            "activation-stuck",
        ],
    )
    images, labels = class_images(3000, 16, 3, CLASSES, job.seed, noise=1.5)
    sampler = Sampler(len(images), job.seed)
    model = network()

    def make() -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)

    optimizer = make()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(0.3 * job.steps), int(0.8 * job.steps)], gamma=0.2)

    def stick(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        output = output.clone()
        output.view(-1)[777] = 4096.0
        return output

    for step in range(job.steps):
        chosen = sampler.take(32)
        if job.on("rows-duplicated", step):
            chosen = chosen[:2].repeat(16)
        raw, classes = images[chosen], labels[chosen]
        batch = raw.float() if job.on("bytes-not-scaled", step) else normalised(raw)
        if job.on("shard-corrupt", step) and step % 4 == 0:
            batch = torch.rand_like(batch) * 4 - 2
        if step % 2:
            batch = batch.flip(-1)
        if job.once("optimizer-new", step):
            optimizer = make()
        if job.once("norm-bias-low", step):
            with torch.no_grad():
                model[4].bn1.bias.fill_(-4.0)
        if job.once("norm-eval", step):
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        if job.once("activation-stuck", step):
            model[3].conv2.register_forward_hook(stick)
        loss = F.cross_entropy(model(batch), classes)
        if not job.on("zero-grad-missing", step):
            optimizer.zero_grad()
        loss.backward()
        if job.once("gradient-bit", step):
            flip_bit(model[5].conv2.weight.grad, 1234, 30)
        optimizer.step()
        if job.on("step-twice", step):
            optimizer.step()
        schedule.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
