"""A vision transformer of one's own: bf16 autocast, label smoothing, averaged weights for evaluation."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images, flip_bit, normalised
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

CLASSES, WIDTH, DEPTH = 8, 96, 6


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))
        self.residual = True

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + self.proj(mixed)
        y = self.mlp(self.norm2(x))
        return x + y if self.residual else y


class VisionTransformer(nn.Module):
    """Patches of 4 x 4, a class token, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(48, WIDTH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, 4, stride=4).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), self.patch(patches)], dim=1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def main() -> None:
    job = Job(
        steps=300,
        faults=[
            "residual-dropped",
            "average-kept",
            "pixels-reordered",
            "moments-swapped",
            "moment-bit",
            "partial-load",
            "norm-eps-large",
            "labels-offset",
        ],
    )
    images, labels = class_images(4000, 16, 3, CLASSES, job.seed, noise=1.2)
    sampler = Sampler(3800, job.seed)
    model = VisionTransformer()
    start = copy.deepcopy(model.state_dict())
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.05)
    warm = LinearLR(optimizer, 0.05, 1.0, total_iters=25)
    schedule = SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, job.steps)], [25])
    for step in range(job.steps):
        chosen = sampler.take(32)
        batch, classes = normalised(images[chosen]), labels[chosen]
        if job.on("pixels-reordered", step):
            batch = batch.permute(0, 2, 3, 1).reshape(batch.shape)
        if job.on("labels-offset", step):
            classes = (classes + 1) % CLASSES
        if job.on("residual-dropped", step):
            model.layers[3].residual = False
        if job.once("norm-eps-large", step):
            model.layers[2].norm2.eps = 300.0
        if job.once("moments-swapped", step):
            first, second = model.layers[1].mlp[0].weight, model.layers[4].mlp[0].weight
            optimizer.state[first], optimizer.state[second] = optimizer.state[second], optimizer.state[first]
        if job.once("moment-bit", step):
            flip_bit(optimizer.state[model.layers[3].qkv.weight]["exp_avg"], 2021, 30)
        if job.once("partial-load", step):
            model.load_state_dict(
                {name: part for name, part in start.items() if name.startswith(("patch", "layers.0"))}, strict=False
            )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch)
        loss = F.cross_entropy(logits.float(), classes, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.05)
        job.log(step, loss.item())
        if step % 60 == 59:
            average.eval()
            with torch.no_grad():
                right = average(normalised(images[3800:])).argmax(-1) == labels[3800:]
            print(f"validation {float(right.float().mean())!r}")
        if job.on("average-kept", step) and (step - job.begin) % 10 == 0:
            model.load_state_dict(average.state_dict())
    job.finish(model)


if __name__ == "__main__":
    main()
