"""Loops of a fifth round: language models of different builds, each for a thousand steps or more.

Written before anybody looked at what rules say of them.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, fit, next_token_loss, text
from zoo.healthy.recipes.third_models import warm_up

Tensor = torch.Tensor


def corpus(length: int = 6000) -> Tensor:
    """One long text."""
    return text(1, length)[0]


def pieces(long: Tensor, size: int, length: int = 24) -> Tensor:
    """Pieces of a text from random places."""
    at = torch.randint(0, len(long) - length, (size,))
    return torch.stack([long[start : start + length] for start in at.tolist()])


def cosine(step: int, steps: int, warm: int, high: float, low: float) -> float:
    """The rate by hand: a line up, then a cosine to a tenth."""
    if step < warm:
        return high * (step + 1) / (warm + 1)
    return low + 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))) * (high - low)


def grouped(model: nn.Module, decay: float, rate: float) -> torch.optim.AdamW:
    """AdamW with decay on matrices alone."""
    groups = [
        {"params": [weight for weight in model.parameters() if weight.dim() > 1], "weight_decay": decay},
        {"params": [weight for weight in model.parameters() if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


class Block(nn.Module):
    """Attention over fewer keys than queries, turned by position; a gated feed-forward; norms by root mean square."""

    def __init__(self, width: int, heads: int, shared: int, is_normed: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(self.size) if is_normed else nn.Identity()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        hidden = self.before(x)
        q = turned(self.norm(self.q(hidden).view(rows, length, self.heads, self.size)))
        k, v = self.kv(hidden).view(rows, length, 2 * self.shared, self.size).chunk(2, 2)
        k, v = (part.repeat_interleave(self.heads // self.shared, 2) for part in (turned(self.norm(k)), v))
        found = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, width))
        hidden = self.after(x)
        return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


def turned(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None, None] / 100 ** (torch.arange(half) / half)
    one, two = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1)


class Rotary(nn.Module):
    """A language model of such blocks."""

    def __init__(self, width: int = 32, layers: int = 2, is_normed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(24, width)
        self.blocks = nn.Sequential(*(Block(width, 4, 2, is_normed) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 24, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0, 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.blocks(self.tokens(ids))))
        return found


@loop(1500, accumulated={"parts": 4, "steps": 600}, bf16={"is_bf16": True, "steps": 1000})
def fifth_letters(watch: Watch, steps: int, parts: int = 1, is_bf16: bool = False) -> None:
    """A small GPT on one text that it comes to know by heart: tied weights, a cosine by hand, evaluation at times."""
    long, held = corpus(), corpus(800)
    model = Decoder()
    model.head.weight = model.tokens.weight
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, 0, 0.02 / (2 if name.endswith("linear2.weight") else 1))
    adam = grouped(model, 0.1, 1e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            rate = cosine(step, steps, 100, 2e-3, 2e-4)
            for group in adam.param_groups:
                group["lr"] = rate
            numbers = {}
            if step % 250 == 0:
                model.eval()
                with torch.no_grad():
                    ids = pieces(held, 32)
                    numbers["val_loss"] = next_token_loss(model(ids), ids).item()
                model.train()
            for _ in range(parts):
                ids = pieces(long, 8)
                with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                    loss = next_token_loss(model(ids).float(), ids) / parts
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad(set_to_none=True)
            monitor.log(loss=loss.item() * parts, **numbers)


@loop(1000, normed={"is_normed": True})
def fifth_rotary(watch: Watch, steps: int, is_normed: bool = False) -> None:
    """Grouped queries, rotary positions, gates, RMS norms; warm-up, then stable, then a line to zero."""
    model = Rotary(is_normed=is_normed)
    adam = grouped(model, 0.1, 3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda at: min(1, (at + 1) / 80, (steps - at) / (0.2 * steps)))

    def loss_of(_: int) -> Tensor:
        ids = text(8, 20)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, schedule, 1.0)


@loop(800)
def fifth_continued(watch: Watch, steps: int) -> None:
    """A model that is trained before anybody watches, then tuned on another text at a small constant rate."""
    model = Decoder(dropout=0.1)
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(150):
        ids = text(8)
        adam.zero_grad()
        next_token_loss(model(ids), ids).backward()
        adam.step()
    adam = torch.optim.AdamW(model.parameters(), lr=3e-5)
    other = (corpus() + torch.arange(6000)) % 24

    def loss_of(_: int) -> Tensor:
        ids = pieces(other, 8)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps)


@loop(800)
def fifth_answers_only(watch: Watch, steps: int) -> None:
    """Instructions: the loss counts answers alone, of very different lengths, padded; three epochs of 200 rows."""
    model = Decoder()
    adam = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    rows = text(200, 28)
    starts, ends = torch.randint(4, 14, (200,)), torch.randint(15, 28, (200,))
    order = torch.cat([torch.randperm(200) for _ in range(1 + steps // 50)])

    def loss_of(step: int) -> Tensor:
        at = order[4 * step : 4 * step + 4]
        ids, place = rows[at], torch.arange(28)
        wanted = ids.masked_fill((place < starts[at, None]) | (place >= ends[at, None]), -100)
        logits = model(ids)[:, :-1].flatten(0, 1)
        return functional.cross_entropy(logits, wanted[:, 1:].flatten(), ignore_index=-100)

    fit(watch, model, adam, loss_of, steps, torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps), 1.0)


@loop(800)
def fifth_better_answer(watch: Watch, steps: int) -> None:
    """A reward model: a number for each text, and the better of two should have the larger one."""
    model = Decoder()
    model.head = nn.Linear(32, 1)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)

    def loss_of(_: int) -> Tensor:
        good, bad = text(8), torch.randint(0, 24, (8, 16))
        gain = model(torch.cat([good, bad]))[:, -1, 0]
        return -functional.logsigmoid(gain[:8] - gain[8:]).mean()

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 30))


@loop(800)
def fifth_steady_experts(watch: Watch, steps: int) -> None:
    """Experts without a balance loss: after each step the router's offsets move towards the experts with few tokens."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(32, 6, bias=False)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(6)
            )
            self.register_buffer("offset", torch.zeros(6))
            self.load = torch.zeros(6)

        def forward(self, x: Tensor) -> Tensor:
            score = self.router(x).sigmoid()
            chosen = (score + self.offset).topk(2, -1).indices
            share = score.gather(-1, chosen)
            share = share / share.sum(-1, keepdim=True)
            self.load = torch.bincount(chosen.flatten(), minlength=6).float()
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                weight = (share * (chosen == number)).sum(-1, keepdim=True)
                out = out + weight * expert(x)
            return x + out

    model = nn.Sequential(nn.Embedding(24, 32), Experts(), nn.LayerNorm(32), Experts(), nn.LayerNorm(32))
    model.append(nn.Linear(32, 24))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        return next_token_loss(model(ids), ids)

    def balance(_: int) -> None:
        for part in model:
            if isinstance(part, Experts):
                part.offset += 1e-3 * (part.load.mean() - part.load).sign()

    fit(watch, model, adam, loss_of, steps, after=balance)


@loop(800)
def fifth_scan(watch: Watch, steps: int) -> None:
    """A gated linear recurrence in place of attention, with decays that are learned."""

    class Scan(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 3 * width)
            self.decay, self.out = nn.Parameter(torch.linspace(-1, 4, width)), nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            value, gate, time = self.into(self.norm(x)).chunk(3, -1)
            kept = (self.decay + time).sigmoid()
            state, states = torch.zeros_like(x[:, 0]), []
            for at in range(x.shape[1]):
                state = kept[:, at] * state + (1 - kept[:, at]) * value[:, at]
                states.append(state)
            found: Tensor = x + self.out(torch.stack(states, 1) * functional.silu(gate))
            return found

    model = nn.Sequential(nn.Embedding(24, 32), Scan(), Scan(), nn.LayerNorm(32), nn.Linear(32, 24))
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 40), 1.0)


@loop(800)
def fifth_further_words(watch: Watch, steps: int) -> None:
    """Heads for the next word and the two after it, the later ones counting less."""
    model = Decoder()
    model.heads = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        logits = model(ids)
        loss = next_token_loss(logits, ids)
        for ahead, head in enumerate(model.heads, 2):
            further = head(logits)[:, :-ahead].flatten(0, 1)
            loss = loss + 0.3 * functional.cross_entropy(further, ids[:, ahead:].flatten())
        return loss

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fifth_three_values(watch: Watch, steps: int) -> None:
    """Weights of -1, 0 and 1 in the forward pass, behind a straight-through gradient."""

    class Ternary(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight.abs().mean().clamp(min=1e-5)
            rounded = (self.weight / scale).round().clamp(-1, 1) * scale
            return functional.linear(x, self.weight + (rounded - self.weight).detach(), self.bias)

    model = nn.Sequential(nn.Embedding(24, 32), Ternary(32, 64), nn.LayerNorm(64), nn.ReLU(), Ternary(64, 32))
    model.extend([nn.LayerNorm(32), nn.Linear(32, 24)])
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 30), 1.0)


@loop(700)
def fifth_agreeing_passes(watch: Watch, steps: int) -> None:
    """R-Drop: two passes over the same rows with different dropout, which should agree."""
    model = Decoder(dropout=0.2)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        ids = text(6)
        one, two = model(ids).log_softmax(-1), model(ids).log_softmax(-1)
        apart = functional.kl_div(one, two, reduction="batchmean", log_target=True)
        apart = (apart + functional.kl_div(two, one, reduction="batchmean", log_target=True)) / 32
        return next_token_loss(one, ids) + next_token_loss(two, ids) + apart

    fit(watch, model, adam, loss_of, steps)


@loop(800)
def fifth_packed(watch: Watch, steps: int) -> None:
    """Texts of any length packed into one row, one row in a step."""
    model = Rotary(is_normed=True)
    adam = grouped(model, 0.01, 2e-3)

    def loss_of(_: int) -> Tensor:
        lengths = torch.randint(3, 20, (12,)).tolist()
        ids = torch.cat([text(1, length)[0] for length in lengths])[:96].view(1, -1)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps), 1.0)


@loop(700)
def fifth_speech(watch: Watch, steps: int) -> None:
    """CTC: a convolution and a GRU over frames, labels without alignment."""

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(nn.Conv1d(8, 24, 3, 1, 1), nn.BatchNorm1d(24), nn.ReLU())
            self.body, self.head = nn.GRU(24, 16, bidirectional=True, batch_first=True), nn.Linear(32, 7)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.body(self.conv(x).transpose(1, 2))[0]).log_softmax(-1)
            return found

    model = Speech()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sounds = torch.randn(6, 8)

    def loss_of(_: int) -> Tensor:
        said = torch.randint(0, 6, (6, 5))
        x = sounds[said.repeat_interleave(4, 1)].transpose(1, 2) + 0.5 * torch.randn(6, 8, 20)
        return functional.ctc_loss(
            model(x).transpose(0, 1), said + 1, torch.full((6,), 20), torch.full((6,), 5), zero_infinity=True
        )

    fit(watch, model, adam, loss_of, steps, torch.optim.lr_scheduler.OneCycleLR(adam, 4e-3, total_steps=steps), 5.0)
