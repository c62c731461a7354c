"""Autoencoders, diffusion, flows and other models of the data itself."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, bars, mlp, next_token_loss, text

Tensor = torch.Tensor


@loop(300, warmed={"warm": 150}, sum={"is_sum": True})
def vae(watch: Watch, steps: int, warm: int = 0, is_sum: bool = False) -> None:
    """A variational autoencoder, whose KL term may be annealed in."""
    model = nn.ModuleDict({"encoder": mlp(144, 48, 16), "decoder": mlp(8, 48, 144)})
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            x = bars(32)[0].flatten(1)
            mean, log = model["encoder"](x).chunk(2, 1)
            found = model["decoder"](mean + torch.randn_like(mean) * (0.5 * log).exp())
            share = min(1.0, step / warm) if warm else 1.0
            kl = -0.5 * (1 + log - mean.square() - log.exp()).sum(1).mean()
            fit = (found - x).square().sum(1).mean()
            loss = fit + share * kl if is_sum else fit / 144 + share * kl / 144
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item(), kl=kl.item())


class UNet(nn.Module):
    """Down, up, a skip and a time embedding; the last convolution starts at zero."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = mlp(16, 32, width, act=nn.SiLU)
        self.first, self.down = nn.Conv2d(1, width, 3, 1, 1), nn.Conv2d(width, width, 3, 2, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.middle = nn.Conv2d(width, width, 3, 1, 1)
        self.up = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.last = nn.Conv2d(2 * width, 1, 3, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * torch.exp(torch.linspace(0, -4, 8))
        moment = self.time(torch.cat([angle.sin(), angle.cos()], 1))[:, :, None, None]
        high = functional.silu(self.norms[0](self.first(x))) + moment
        low = functional.silu(self.norms[1](self.down(high)))
        low = low + functional.silu(self.norms[2](self.middle(low)))
        out: Tensor = self.last(torch.cat([high, self.up(low)], 1))
        return out


@loop(300, averaged={"is_averaged": True}, clipped={"clip": 1.0})
def diffusion(watch: Watch, steps: int, is_averaged: bool = False, clip: float = 0.0) -> None:
    """DDPM: random times, noise as the target, and an average of the weights beside them."""
    model = UNet()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = [weight.detach().clone() for weight in model.parameters()]
    alpha = torch.cumprod(1 - torch.linspace(1e-3, 0.1, 100), 0)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, t = bars(16)[0], torch.randint(0, 100, (16,))
            noise, level = torch.randn_like(x), alpha[t][:, None, None, None]
            loss = (model(level.sqrt() * x + (1 - level).sqrt() * noise, t.float()) - noise).square().mean()
            adam.zero_grad()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            adam.step()
            if is_averaged:
                with torch.no_grad():
                    for mean, weight in zip(kept, model.parameters(), strict=True):
                        mean.lerp_(weight, 0.01)
            monitor.log(loss=loss.item())


@loop(300)
def flow(watch: Watch, steps: int) -> None:
    """Affine couplings; the loss is a log-likelihood and may be below zero."""
    parts = nn.ModuleList(mlp(1, 24, 2, act=nn.Tanh) for _ in range(4))
    adam = torch.optim.Adam(parts.parameters(), lr=3e-3)
    with watch(parts, adam) as monitor:
        for _ in range(steps):
            a = torch.randn(64, 1) * 0.3
            x = torch.cat([a, a.square() * 2 + 0.1 * torch.randn(64, 1)], 1)
            total = torch.zeros(64)
            for number, part in enumerate(parts):
                one, two = x.chunk(2, 1) if number % 2 else x.flip(1).chunk(2, 1)
                scale, shift = part(one).chunk(2, 1)
                x = torch.cat([one, two * scale.tanh().exp() + shift], 1)
                total = total + scale.tanh().squeeze(1)
            loss = (0.5 * x.square().sum(1) - total).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(300, commit={"commit": 1.0})
def quantised_autoencoder(watch: Watch, steps: int, commit: float = 0.25) -> None:
    """VQ-VAE: a codebook of which a batch uses a few entries, and a straight-through gradient."""
    model = nn.ModuleDict({"encoder": mlp(144, 32, 8), "codes": nn.Embedding(16, 8), "decoder": mlp(8, 32, 144)})
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x = bars(32)[0].flatten(1)
            inner = model["encoder"](x)
            nearest = torch.cdist(inner, model["codes"].weight).argmin(1)
            code = model["codes"](nearest)
            found = model["decoder"](inner + (code - inner).detach())
            pull = functional.mse_loss(code, inner.detach()) + commit * functional.mse_loss(inner, code.detach())
            loss = functional.mse_loss(found, x) + pull
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def masked_autoencoder(watch: Watch, steps: int) -> None:
    """Three quarters of the pixels are hidden by a token that is learned."""
    body, token = mlp(144, 64, 64, 144, act=nn.GELU), nn.Parameter(torch.zeros(144))
    model = nn.Module()
    model.body, model.token = body, token
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 2e-3, total_steps=steps)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x = bars(32)[0].flatten(1)
            hidden = torch.rand_like(x) < 0.75
            loss = ((body(torch.where(hidden, token, x)) - x).square() * hidden).sum() / hidden.sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            monitor.log(loss=loss.item())


@loop(260, smoothed={"smoothing": 0.1}, dropped={"dropout": 0.2}, tiny={"batch": 1}, warm={"warm": 60})
def language_model(
    watch: Watch, steps: int, smoothing: float = 0.0, dropout: float = 0.0, batch: int = 8, warm: int = 20
) -> None:
    """A decoder with a warm-up and a cosine, through a LambdaLR."""
    model = Decoder(dropout=dropout)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda step: min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    with watch(model, adam) as monitor:
        for _ in range(steps):
            ids = text(batch)
            loss = next_token_loss(model(ids), ids, smoothing)
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            schedule.step()
            monitor.log(loss=loss.item())


@loop(260)
def implicit_field(watch: Watch, steps: int) -> None:
    """A SIREN that learns one picture: sines, and the same points again and again."""
    layers = nn.ModuleList([nn.Linear(2, 48), nn.Linear(48, 48), nn.Linear(48, 1)])
    for number, layer in enumerate(layers):
        bound = 0.5 if number == 0 else math.sqrt(6 / 48) / 30
        nn.init.uniform_(layer.weight, -bound, bound)
    adam = torch.optim.Adam(layers.parameters(), lr=1e-3)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij"), -1)
    points = grid.reshape(-1, 2)
    picture = torch.sin(6 * points[:, :1]) * torch.cos(4 * points[:, 1:])
    with watch(layers, adam) as monitor:
        for _ in range(steps):
            x = points
            for layer in layers[:-1]:
                x = torch.sin(30 * layer(x))
            loss = (layers[-1](x) - picture).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())
