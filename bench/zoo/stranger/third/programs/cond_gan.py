"""A conditional GAN: projection critic with spectral norm, hinge loss, augmentation, gradient penalty, averages."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job, Sampler, class_images
from torch import Tensor, nn

SIZE, CLASSES, NOISE, BATCH = 16, 4, 24, 24
CODE = SimpleNamespace(spectral=True)


class SpectralConv(nn.Conv2d):
    """A convolution whose weight is divided by its largest singular value, found by power iteration."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__(inside, outside, kernel, stride, padding)
        self.register_buffer("u", F.normalize(torch.randn(outside), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        if not CODE.spectral:
            return super().forward(x)
        matrix = self.weight.flatten(1)
        with torch.no_grad():
            v = F.normalize(matrix.T @ self.u, dim=0)
            self.u = F.normalize(matrix @ v, dim=0)
        return F.conv2d(x, self.weight / (self.u @ matrix @ v), self.bias, self.stride, self.padding)


class ConditionalNorm(nn.Module):
    """Batch norm with a gain and a bias for each class."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.embed = nn.Embedding(CLASSES, 2 * channels)
        nn.init.normal_(self.embed.weight[:, :channels], 1.0, 0.02)
        nn.init.zeros_(self.embed.weight[:, channels:])

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        gain, bias = self.embed(classes)[..., None, None].chunk(2, dim=1)
        return gain * self.norm(x) + bias


class Generator(nn.Module):
    """Noise and classes to pictures from -1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(NOISE, 48 * 16)
        self.norm1, self.conv1 = ConditionalNorm(48), nn.Conv2d(48, 32, 3, padding=1)
        self.norm2, self.conv2 = ConditionalNorm(32), nn.Conv2d(32, 24, 3, padding=1)
        self.last = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, noise: Tensor, classes: Tensor) -> Tensor:
        x = self.start(noise).view(-1, 48, 4, 4)
        x = self.conv1(F.interpolate(F.relu(self.norm1(x, classes)), scale_factor=2.0))
        x = self.conv2(F.interpolate(F.relu(self.norm2(x, classes)), scale_factor=2.0))
        return torch.tanh(self.last(F.relu(x)))


class Critic(nn.Module):
    """Pictures and classes to a score."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = SpectralConv(1, 24, 4, 2, 1)
        self.conv2 = SpectralConv(24, 48, 4, 2, 1)
        self.conv3 = SpectralConv(48, 64, 4, 1, 0)
        self.score = nn.Linear(64, 1)
        self.project = nn.Embedding(CLASSES, 64)
        nn.init.normal_(self.project.weight, std=0.1)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(x), 0.2)
        x = F.leaky_relu(self.conv2(x), 0.2)
        x = F.leaky_relu(self.conv3(x), 0.2).flatten(1)
        return self.score(x).squeeze(1) + (self.project(classes) * x).sum(1)


def augment(x: Tensor, strength: float) -> Tensor:
    """Brightness, contrast and a hole; gradients go through."""
    rows = len(x)
    x = x + strength * (torch.rand(rows, 1, 1, 1) - 0.5)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * (1 + strength * (torch.rand(rows, 1, 1, 1) - 0.5)) + mean
    corner = torch.randint(0, SIZE - 5, (rows, 2))
    place = torch.arange(SIZE)
    line = (place >= corner[:, :1]) & (place < corner[:, :1] + 6)
    column = (place >= corner[:, 1:]) & (place < corner[:, 1:] + 6)
    return x * ~(line[:, :, None] & column[:, None, :])[:, None]


def main() -> None:
    job = Job(
        steps=300,
        faults=["augmented-real-only", "classes-of-fakes", "spectral-norm-lost", "penalty-without-graph"],
        at_start=["pixels-from-zero"],
        recipes=["plain", "penalty-now-and-then", "augmentation-grows"],
    )
    bytes_, labels = class_images(2000, SIZE, 1, CLASSES, job.seed, noise=0.15)
    pictures = (bytes_.float() / 127.5 - 1).clamp(-1, 1)
    if job.fault == "pixels-from-zero":
        pictures = bytes_.float() / 255
    generator, critic = Generator(), Critic()
    averaged = torch.optim.swa_utils.AveragedModel(
        generator, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
    )
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=4e-4, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
    sampler = Sampler(len(pictures), job.seed)
    for step in range(job.steps):
        CODE.spectral = not job.on("spectral-norm-lost", step)
        strength = min(1.0, step / 200) if job.recipe == "augmentation-grows" else 0.5
        rows = sampler.take(BATCH)
        real, classes = pictures[rows].requires_grad_(True), labels[rows]
        wanted = torch.randint(0, CLASSES, (BATCH,))
        fake = generator(torch.randn(BATCH, NOISE), wanted)

        said = torch.randint(0, CLASSES, (BATCH,)) if job.on("classes-of-fakes", step) else wanted
        shown = fake.detach()
        if not job.on("augmented-real-only", step):
            shown = augment(shown, strength)
        real_score = critic(augment(real, strength), classes)
        fake_score = critic(shown, said)
        critic_loss = F.relu(1 - real_score).mean() + F.relu(1 + fake_score).mean()
        every = 4 if job.recipe == "penalty-now-and-then" else 1
        penalty = torch.zeros(())
        if step % every == 0:
            graph = not job.on("penalty-without-graph", step)
            (slope,) = torch.autograd.grad(real_score.sum(), real, create_graph=graph, retain_graph=True)
            penalty = 0.2 * every * slope.square().sum((1, 2, 3)).mean()
        critic_optimizer.zero_grad()
        (critic_loss + penalty).backward()
        critic_optimizer.step()

        shown = fake if job.on("augmented-real-only", step) else augment(fake, strength)
        generator_loss = -critic(shown, said).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        averaged.update_parameters(generator)
        job.log(step, critic_loss.item(), generator=generator_loss.item(), penalty=penalty.item())
    job.finish(generator, critic)


if __name__ == "__main__":
    main()
