"""Two networks that train against each other."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import bars, mlp


def _generator(norm: bool = True) -> nn.Sequential:
    bn = nn.BatchNorm2d(12) if norm else nn.Identity()
    return nn.Sequential(
        nn.Linear(8, 108), nn.Unflatten(1, (12, 3, 3)), bn, nn.ReLU(),
        nn.ConvTranspose2d(12, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def _critic(norm: bool = True) -> nn.Sequential:
    bn = nn.BatchNorm2d(16) if norm else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), bn, nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(144, 1),
    )  # fmt: skip


@loop(300, slow={"rate": 5e-5}, fast={"rate": 1e-3}, wide={"batch": 48})
def dcgan(watch: Watch, steps: int, rate: float = 2e-4, batch: int = 16) -> None:
    """The DCGAN tutorial: G's backward leaves gradients in D, which D zeroes before its own turn."""
    g, d, criterion = _generator(), _critic(), nn.BCEWithLogitsLoss()
    d_adam = torch.optim.Adam(d.parameters(), lr=rate, betas=(0.5, 0.999))
    g_adam = torch.optim.Adam(g.parameters(), lr=rate, betas=(0.5, 0.999))
    one, zero = torch.ones(batch), torch.zeros(batch)
    with watch({"g": g, "d": d}, [d_adam, g_adam]) as monitor:
        for _ in range(steps):
            d.zero_grad()
            real = criterion(d(bars(batch)[0]).view(-1), one)
            real.backward()
            fake = g(torch.randn(batch, 8))
            false = criterion(d(fake.detach()).view(-1), zero)
            false.backward()
            d_adam.step()
            g.zero_grad()
            loss = criterion(d(fake).view(-1), one)
            loss.backward()
            g_adam.step()
            monitor.log(loss_g=loss.item(), loss_d=(real + false).item())


@loop(300, logged={"logged": True})
def wgan_penalty(watch: Watch, steps: int, logged: bool = False) -> None:
    """WGAN-GP: three updates of the critic for one of the generator, and a gradient of a gradient."""
    g, d = _generator(False), _critic(False)
    d_adam = torch.optim.Adam(d.parameters(), lr=3e-4, betas=(0.0, 0.9))
    g_adam = torch.optim.Adam(g.parameters(), lr=3e-4, betas=(0.0, 0.9))
    with watch({"g": g, "d": d}, [d_adam, g_adam]) as monitor:
        for step in range(steps):
            real, fake = bars(16)[0], g(torch.randn(16, 8)).detach()
            between = torch.lerp(real, fake, torch.rand(16, 1, 1, 1)).requires_grad_()
            slope = torch.autograd.grad(d(between).sum(), between, create_graph=True)[0]
            penalty = 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()
            loss = d(fake).mean() - d(real).mean() + penalty
            d_adam.zero_grad()
            loss.backward()
            d_adam.step()
            if step % 3 == 2:
                g_adam.zero_grad()
                (-d(g(torch.randn(16, 8))).mean()).backward()
                g_adam.step()
            if logged:
                monitor.log(loss=loss.item())


@loop(300)
def wgan_clipped(watch: Watch, steps: int) -> None:
    """The first WGAN: the critic's weights are clamped after every update."""
    g, d = mlp(4, 32, 2), mlp(2, 32, 1)
    d_rms, g_rms = torch.optim.RMSprop(d.parameters(), lr=5e-4), torch.optim.RMSprop(g.parameters(), lr=5e-4)
    with watch({"g": g, "d": d}, [d_rms, g_rms]) as monitor:
        for _ in range(steps):
            real = torch.randn(32, 2) * 0.5 + torch.tensor([1.0, -1.0])
            loss = d(g(torch.randn(32, 4)).detach()).mean() - d(real).mean()
            d_rms.zero_grad()
            loss.backward()
            d_rms.step()
            with torch.no_grad():
                for weight in d.parameters():
                    weight.clamp_(-0.1, 0.1)
            g_rms.zero_grad()
            (-d(g(torch.randn(32, 4))).mean()).backward()
            g_rms.step()
            monitor.log(loss_d=loss.item())


@loop(300)
def hinge_gan(watch: Watch, steps: int) -> None:
    """Hinge losses, spectral normalisation, and an averaged generator that no optimizer holds."""
    g, d = _generator(), _critic(False)
    for module in d.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.utils.parametrizations.spectral_norm(module)
    averaged = torch.optim.swa_utils.AveragedModel(g, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    d_adam = torch.optim.Adam(d.parameters(), lr=4e-4, betas=(0.0, 0.9))
    g_adam = torch.optim.Adam(g.parameters(), lr=1e-4, betas=(0.0, 0.9))
    with watch({"g": g, "d": d, "averaged": averaged}, [d_adam, g_adam]) as monitor:
        for _ in range(steps):
            fake = g(torch.randn(16, 8))
            loss = functional.relu(1 - d(bars(16)[0])).mean() + functional.relu(1 + d(fake.detach())).mean()
            d_adam.zero_grad()
            loss.backward()
            d_adam.step()
            g_adam.zero_grad()
            (-d(fake).mean()).backward()
            g_adam.step()
            averaged.update_parameters(g)
            monitor.log(loss_d=loss.item())


@loop(300)
def gan_of_two_monitors(watch: Watch, steps: int) -> None:
    """Only the generator is watched; the other network trains unwatched."""
    g, d, criterion = mlp(4, 32, 2), mlp(2, 32, 1), nn.BCEWithLogitsLoss()
    d_adam, g_adam = torch.optim.Adam(d.parameters(), lr=1e-3), torch.optim.Adam(g.parameters(), lr=1e-3)
    with watch(g, g_adam) as monitor:
        for _ in range(steps):
            real = torch.randn(32, 2) * 0.5 + 1
            fake = g(torch.randn(32, 4))
            score, other = d(real), d(fake.detach())
            d_adam.zero_grad()
            (criterion(score, torch.ones_like(score)) + criterion(other, torch.zeros_like(other))).backward()
            d_adam.step()
            g_adam.zero_grad()
            loss = criterion(d(fake), torch.ones(32, 1))
            loss.backward()
            g_adam.step()
            monitor.log(loss=loss.item())


@loop(250)
def domain_adversarial(watch: Watch, steps: int) -> None:
    """A gradient that is reversed on its way into the features, with a strength that ramps up."""
    body, label, domain = mlp(6, 32, 16), nn.Linear(16, 2), mlp(16, 16, 2)
    model = nn.ModuleDict({"body": body, "label": label, "domain": domain})
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, strength: float) -> torch.Tensor:
            ctx.strength = strength  # type: ignore[attr-defined]
            return x.view_as(x)

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
            return -ctx.strength * grad, None  # type: ignore[attr-defined]

    with watch(model, sgd) as monitor:
        for step in range(steps):
            source = torch.randn(32, 6)
            target = torch.randn(32, 6) + 0.5
            found = body(torch.cat([source, target]))
            strength = 2 / (1 + torch.exp(torch.tensor(-10.0 * step / steps)).item()) - 1
            place = torch.cat([torch.zeros(32), torch.ones(32)]).long()
            own = functional.cross_entropy(label(found[:32]), (source[:, 0] > 0).long())
            other = functional.cross_entropy(domain(Reverse.apply(found, strength)), place)
            sgd.zero_grad()
            (own + 0.3 * other).backward()
            sgd.step()
            monitor.log(loss=own.item(), loss_domain=other.item())
