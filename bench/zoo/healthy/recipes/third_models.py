"""Loops of a third round, by model: written together, before anybody looked at what rules say of them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, fit, mlp, next_token_loss, text

Tensor = torch.Tensor
Cosine = torch.optim.lr_scheduler.CosineAnnealingLR


def warm_up(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """A line up to the full rate."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))


class UNet(nn.Module):
    """Two levels with a skip connection, told about time by an embedding."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.time = mlp(1, width, width, act=nn.SiLU)
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.GroupNorm(4, width), nn.SiLU())
        self.up = nn.Upsample(scale_factor=2)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        high = self.down(x) + self.time(time)[:, :, None, None]
        found: Tensor = self.out(torch.cat([high, self.up(self.middle(high))], 1))
        return found


@loop(300, bf16={"is_bf16": True})
def unet_diffusion(watch: Watch, steps: int, is_bf16: bool = False) -> None:
    """A diffusion UNet that predicts noise, with an average of its weights beside it."""
    model = UNet()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        x, _labels = bars(16)
        time = torch.rand(16, 1)
        noise = torch.randn_like(x)
        signal = torch.cos(time * math.pi / 2)[:, :, None, None]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            found = model(signal * x + (1 - signal**2).sqrt() * noise, time)
        return functional.mse_loss(found.float(), noise)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 50), 1.0, lambda _: averaged.update_parameters(model))


@loop(260, dice={"is_dice": True})
def segmentation(watch: Watch, steps: int, is_dice: bool = False) -> None:
    """One pixel in fifty is foreground, and the border is ignored."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
    )
    model.append(nn.Conv2d(8, 2, 1))
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(_: int) -> Tensor:
        wanted = (torch.rand(6, 12, 12) < 0.02).long()
        x = wanted[:, None] * 1.5 + 0.5 * torch.randn(6, 1, 12, 12)
        wanted[:, 0], wanted[:, -1] = -100, -100
        found = model(x)
        loss = functional.cross_entropy(found, wanted, torch.tensor([1.0, 10.0]))
        if is_dice:
            chance, is_there = found.softmax(1)[:, 1], (wanted == 1).float()
            loss = loss + 1 - (2 * (chance * is_there).sum() + 1) / (chance.sum() + is_there.sum() + 1)
        return loss

    fit(watch, model, adam, loss_of, steps)


@loop(300)
def batch_norm_of_two(watch: Watch, steps: int) -> None:
    """Two images in a batch, normalised over both."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    )
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)])
    sgd = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss_of(_: int) -> Tensor:
        x, y = bars(2)
        return functional.cross_entropy(model(x), y)

    fit(watch, model, sgd, loss_of, steps)


class Vision(nn.Module):
    """A vision transformer with layer scale and paths that are dropped at random."""

    def __init__(self, width: int = 24, layers: int = 3, drop: float = 0.2) -> None:
        super().__init__()
        self.patches, self.drop = nn.Conv2d(1, width, 4, 4), drop
        self.place = nn.Parameter(0.02 * torch.randn(1, 10, width))
        self.sign = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(layers))
        self.mixers = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.scales = nn.ParameterList(nn.Parameter(1e-4 * torch.ones(width)) for _ in range(2 * layers))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.sign.expand(len(x), -1, -1), x], 1) + self.place
        for at, (block, mixer) in enumerate(zip(self.blocks, self.mixers, strict=True)):
            inner = self.norms[2 * at](x)
            x = x + self._kept(x) * self.scales[2 * at] * mixer(inner, inner, inner, need_weights=False)[0]
            x = x + self._kept(x) * self.scales[2 * at + 1] * block(self.norms[2 * at + 1](x))
        found: Tensor = self.head(self.norms[-1](x)[:, 0])
        return found

    def _kept(self, x: Tensor) -> Tensor:
        return (torch.rand(len(x), 1, 1) >= self.drop) / (1 - self.drop)


@loop(300, smooth={"smoothing": 0.1})
def vision_transformer(watch: Watch, steps: int, smoothing: float = 0.0) -> None:
    """A ViT with cutmix, warm-up and a cosine."""
    model = Vision()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.SequentialLR(adam, [warm_up(adam, 40), Cosine(adam, steps - 40)], [40])

    def loss_of(_: int) -> Tensor:
        x, y = bars(24)
        order, cut = torch.randperm(24), int(torch.randint(1, 8, ()))
        x = torch.cat([x[:, :, :cut], x[order][:, :, cut:]], 2)
        share, found = cut / 12, model(x)
        one = functional.cross_entropy(found, y, label_smoothing=smoothing)
        return share * one + (1 - share) * functional.cross_entropy(found, y[order], label_smoothing=smoothing)

    fit(watch, model, adam, loss_of, steps, schedule, 1.0)


@loop(280)
def translation(watch: Watch, steps: int) -> None:
    """An encoder and decoder that turns sequences around, padded, with Noam's schedule."""
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(20, 24, padding_idx=0),
            "core": nn.Transformer(24, 4, 2, 2, 48, 0.1, batch_first=True),
            "head": nn.Linear(24, 20),
        }
    )
    adam = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda step: 24**-0.5 * min((step + 1) ** -0.5, (step + 1) * 100**-1.5)
    )

    def loss_of(_: int) -> Tensor:
        source = torch.randint(2, 20, (8, 10))
        lengths = torch.randint(5, 11, (8, 1))
        is_pad = torch.arange(10)[None] >= lengths
        source[is_pad] = 0
        wanted = source.flip(1)
        given = torch.cat([torch.ones(8, 1, dtype=torch.long), wanted[:, :-1]], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(10)
        found = model["core"](model["words"](source), model["words"](given), tgt_mask=mask, src_key_padding_mask=is_pad)
        scores = model["head"](found)
        return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=0, label_smoothing=0.1)

    fit(watch, model, adam, loss_of, steps, schedule)


@loop(260)
def masked_words(watch: Watch, steps: int) -> None:
    """BERT: a share of tokens is hidden, and only those count."""
    model = Decoder(words=25)
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)

    def loss_of(_: int) -> Tensor:
        ids = text(12)
        is_hidden = torch.rand(ids.shape) < 0.15
        is_hidden[0, 1] = True
        found = model(ids.masked_fill(is_hidden, 24))
        return functional.cross_entropy(found.flatten(0, 1), ids.masked_fill(~is_hidden, -100).flatten())

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 30), 1.0)


@loop(280)
def capacity_experts(watch: Watch, steps: int) -> None:
    """A switch layer whose experts drop what is above their capacity, with a loss of its own for the balance."""

    class Switch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.router = nn.Linear(12, 24), nn.Linear(24, 4, bias=False)
            self.experts = nn.ModuleList(mlp(24, 32, 24) for _ in range(4))
            self.last = nn.Linear(24, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.first(x)
            chance = self.router(x).softmax(-1)
            weight, chosen = chance.max(-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                at = (chosen == number).nonzero()[:, 0][:20]
                out = out.index_add(0, at, expert(x[at]) * weight[at, None])
            share = functional.one_hot(chosen, 4).float().mean(0)
            return self.last(x + out), 4 * (share * chance.mean(0)).sum()

    model, rows = Switch(), Table()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(64)
        found, balance = model(x)
        return functional.mse_loss(found, y) + 0.02 * balance

    fit(watch, model, adam, loss_of, steps)


@loop(240)
def fake_quantised(watch: Watch, steps: int) -> None:
    """Quantisation-aware: weights are rounded to 16 levels, gradients pass straight through, from step 80 on."""

    class Rounded(nn.Linear):
        is_on = False

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight
            if self.is_on:
                size = weight.detach().abs().max() / 7
                weight = weight + (torch.round(weight / size) * size - weight).detach()
            return functional.linear(x, weight, self.bias)

    model, rows = nn.Sequential(Rounded(12, 32), nn.ReLU(), Rounded(32, 32), nn.ReLU(), Rounded(32, 3)), Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(step: int) -> Tensor:
        Rounded.is_on = step >= 80
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    fit(watch, model, adam, loss_of, steps)


@loop(240, spectral={"is_spectral": True})
def normed_weights(watch: Watch, steps: int, is_spectral: bool = False) -> None:
    """Weight normalisation, or spectral normalisation with its power iteration in each pass."""
    wrap = nn.utils.parametrizations.spectral_norm if is_spectral else nn.utils.parametrizations.weight_norm
    model = nn.Sequential(wrap(nn.Linear(12, 32)), nn.ReLU(), wrap(nn.Linear(32, 32)), nn.ReLU(), nn.Linear(32, 3))
    rows = Table()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(32)
        return functional.mse_loss(model(x), y)

    fit(watch, model, adam, loss_of, steps)


@loop(240)
def unrolled_solver(watch: Watch, steps: int) -> None:
    """A neural ODE by twelve fixed steps: one network is called again and again."""
    model = mlp(3, 24, 2, act=nn.Tanh)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(16, 2)
        turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        wanted = x @ torch.linalg.matrix_exp(turn)
        for number in range(12):
            x = x + model(torch.cat([x, torch.full((16, 1), number / 12)], 1)) / 12
        return functional.mse_loss(x, wanted)

    fit(watch, model, adam, loss_of, steps, clip=1.0)


@loop(240)
def point_sets(watch: Watch, steps: int) -> None:
    """PointNet: a maximum over points, of clouds with different sizes."""

    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each, self.all = mlp(3, 32, 32), mlp(32, 32, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.all(self.each(x).amax(1))
            return found

    model = Points()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(_: int) -> Tensor:
        label = torch.randint(0, 3, (16,))
        x = torch.randn(16, int(torch.randint(20, 60, ())), 3)
        x[torch.arange(16), :, label] *= 2.5
        return functional.cross_entropy(model(x), label)

    fit(watch, model, adam, loss_of, steps)


@loop(260)
def layers_dropped(watch: Watch, steps: int) -> None:
    """LayerDrop: whole blocks are left out of a step at random, and have no gradient then."""
    model = Decoder(layers=4)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    blocks = list(model.blocks)

    def loss_of(_: int) -> Tensor:
        kept = [block for block in blocks if torch.rand(()) > 0.2]
        ids = text(8)
        x = model.tokens(ids) + model.places(torch.arange(16))
        mask = nn.Transformer.generate_square_subsequent_mask(16)
        for block in kept:
            x = block(x, src_mask=mask, is_causal=True)
        return next_token_loss(model.head(model.norm(x)), ids)

    fit(watch, model, adam, loss_of, steps)


@loop(240)
def recomputed(watch: Watch, steps: int) -> None:
    """Gradient checkpointing: blocks are computed twice."""
    from torch.utils.checkpoint import checkpoint

    model = Decoder(layers=3)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        x = model.tokens(ids) + model.places(torch.arange(16))
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return next_token_loss(model.head(model.norm(x)), ids)

    fit(watch, model, adam, loss_of, steps, clip=1.0)


@loop(260)
def sizes_of_images(watch: Watch, steps: int) -> None:
    """Images of another size in each batch."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()
    )
    model.extend([nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten(), nn.Linear(64, 4)])
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(step: int) -> Tensor:
        x, y = bars(12, side=(8, 12, 16, 24)[int(torch.randint(0, 4, ()))])
        return functional.cross_entropy(model(x), y)

    fit(watch, model, adam, loss_of, steps)
