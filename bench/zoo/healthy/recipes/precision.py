"""Half precision, accumulation, clipping, fine-tuning and small batches."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, mlp, next_token_loss, text

Tensor = torch.Tensor


@loop(240, low={"scale": 2.0**8}, growing={"growth": 30})
def scaled(watch: Watch, steps: int, scale: float = 2.0**24, growth: int = 200) -> None:
    """fp16 with a loss scaler that begins too high: it skips its first updates, and sometimes a later one."""
    model, rows = mlp(12, 48, 48, 3, act=nn.GELU), Table()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            with torch.autocast("cpu", torch.float16):
                loss = functional.mse_loss(model(x).float(), y)
            adam.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(adam)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(adam)
            scaler.update()
            monitor.log(loss=loss.item())


@loop(240, autocast={"is_autocast": True})
def bfloat16(watch: Watch, steps: int, is_autocast: bool = False) -> None:
    """bf16, of the weights themselves or by autocast."""
    model, rows = mlp(12, 48, 48, 3), Table()
    if not is_autocast:
        model.to(torch.bfloat16)
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
                loss = functional.mse_loss(model(x if is_autocast else x.bfloat16()).float(), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(240, eight={"parts": 8}, unclipped={"clip": 0.0})
def accumulated(watch: Watch, steps: int, parts: int = 4, clip: float = 0.5) -> None:
    """Several small batches for each update, and clipping."""
    model = Decoder()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps // 2):
            total = 0.0
            for _ in range(parts):
                ids = text(2)
                loss = next_token_loss(model(ids), ids) / parts
                loss.backward()
                total += loss.item()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            adam.step()
            adam.zero_grad()
            monitor.log(loss=total)


class Adapted(nn.Module):
    """A frozen layer with a low-rank addition whose second factor starts at zero."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) / inner.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + 2 * x @ self.down.T @ self.up.T
        return out


@loop(240, fast={"rate": 1e-2}, filtered={"is_filtered": True})
def adapters(watch: Watch, steps: int, rate: float = 1e-3, is_filtered: bool = False) -> None:
    """LoRA on a model that was trained before."""
    model, rows = mlp(12, 32, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        x, y = rows.batch(32)
        adam.zero_grad()
        functional.mse_loss(model(x), y).backward()
        adam.step()
    for at in (0, 2, 4):
        model[at] = Adapted(model[at])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    other = Table(seed=9)
    adam = torch.optim.AdamW(weights if is_filtered else model.parameters(), lr=rate)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = other.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(240, full={"is_frozen": False}, prompts={"is_prompt": True})
def fine_tuning(watch: Watch, steps: int, is_frozen: bool = True, is_prompt: bool = False) -> None:
    """A pretrained decoder with its lower half frozen, with all of it, or with a prompt that is learned alone."""
    model = Decoder(length=80)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        ids = text(8)
        adam.zero_grad()
        next_token_loss(model(ids), ids).backward()
        adam.step()
    if is_prompt:
        model.requires_grad_(False)
        model.places.weight.requires_grad_()
    elif is_frozen:
        model.tokens.requires_grad_(False)
        model.blocks[0].requires_grad_(False)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    adam = torch.optim.AdamW(weights, lr=2e-4)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            ids = (text(8) + 3) % 24
            loss = next_token_loss(model(ids), ids)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(300, two={"batch": 2}, images={"is_image": True})
def tiny_batches(watch: Watch, steps: int, batch: int = 1, is_image: bool = False) -> None:
    """One row in each batch, and noise to match."""
    model = mlp(144, 32, 4) if is_image else mlp(12, 32, 3)
    rows, sgd = Table(noise=0.5), torch.optim.SGD(model.parameters(), lr=0.02)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            x, y = bars(batch) if is_image else rows.batch(batch)
            found = model(x.flatten(1))
            loss = functional.cross_entropy(found, y) if is_image else functional.mse_loss(found, y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            monitor.log(loss=loss.item())


@loop(260, heavy={"heavy": 1.5})
def heavy_tails(watch: Watch, steps: int, heavy: float = 3.0) -> None:
    """Targets with heavy tails, under a squared loss and clipping: some batches are far off."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    tails = torch.distributions.StudentT(heavy)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y + 0.2 * tails.sample(y.shape))
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            monitor.log(loss=loss.item())


@loop(260, rare={"rare": 0.03})
def rare_class(watch: Watch, steps: int, rare: float = 0.1) -> None:
    """A class that is in few batches."""
    model = mlp(8, 32, 2)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            y = (torch.rand(16) < rare).long()
            x = torch.randn(16, 8) + y[:, None] * 1.5
            loss = functional.cross_entropy(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def evaluated(watch: Watch, steps: int) -> None:
    """An evaluation every 25 steps, in evaluation mode, and back."""
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    rows, adam = Table(), torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            x, y = rows.classes(32)
            loss = functional.cross_entropy(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())
            if step % 25 == 24:
                model.eval()
                with torch.no_grad():
                    x, y = rows.classes(100)
                    monitor.log(val_loss=functional.cross_entropy(model(x), y).item())
                model.train()


@loop(260)
def memorising(watch: Watch, steps: int) -> None:
    """Few rows learned by heart: the loss falls by orders of magnitude, and gradients with it."""
    model, (x, y) = mlp(12, 64, 64, 3), Table().classes(32)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            at = torch.randperm(32)[:16]
            loss = functional.cross_entropy(model(x[at]), y[at])
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def best_put_back(watch: Watch, steps: int) -> None:
    """Early stopping that puts the best weights back and goes on with a smaller rate."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    best, kept = float("inf"), copy.deepcopy(model.state_dict())
    with watch(model, adam) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())
            if step % 30 == 29:
                with torch.no_grad():
                    x, y = rows.batch(200)
                    found = functional.mse_loss(model(x), y).item()
                if found < best:
                    best, kept = found, copy.deepcopy(model.state_dict())
                else:
                    model.load_state_dict(kept)
                    adam.param_groups[0]["lr"] *= 0.5
