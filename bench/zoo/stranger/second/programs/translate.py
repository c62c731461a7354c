"""Sequence to sequence with nn.Transformer: padded pairs, label smoothing, the schedule of the original paper."""

from __future__ import annotations

import math

import torch
from common import Job
from torch import Tensor, nn

WORDS, PAD, BOS, EOS, FIRST, LONGEST, WIDTH = 24, 0, 1, 2, 3, 10, 64
VOCAB = WORDS + FIRST


class Positions(nn.Module):
    """Sine and cosine positions, in a buffer that checkpoints leave out."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(LONGEST + 4)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(1e3) / WIDTH))
        self.register_buffer("table", torch.stack([angles.sin(), angles.cos()], -1).flatten(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class Translator(nn.Module):
    """Encoder and decoder with one table of tokens for both."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH, padding_idx=PAD)
        nn.init.normal_(self.tokens.weight, std=WIDTH**-0.5)
        self.positions = Positions()
        self.transformer = nn.Transformer(WIDTH, 4, 2, 2, 128, dropout=0.05, batch_first=True, norm_first=True)
        self.output = nn.Linear(WIDTH, VOCAB)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.positions(self.tokens(tokens) * math.sqrt(WIDTH))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        padding = source == PAD
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=ahead,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_key_padding_mask=target == PAD,
        )
        return self.output(hidden)


def make_pairs(count: int, generator: torch.Generator, table: Tensor) -> tuple[Tensor, Tensor]:
    """Sources, and targets that translate each word by a table and its left neighbour's parity."""
    lengths = torch.randint(5, LONGEST + 1, (count, 1), generator=generator)
    inside = torch.arange(LONGEST) < lengths
    words = torch.randint(0, WORDS, (count, LONGEST), generator=generator)
    left = torch.nn.functional.pad(words[:, :-1], (1, 0))
    target = table[left % 2, words]
    source = torch.where(inside, words + FIRST, PAD)
    target = torch.where(inside, target + FIRST, PAD)
    ends = torch.cat([target, torch.full((count, 1), PAD)], dim=1)
    ends.scatter_(1, lengths, EOS)
    return source, torch.cat([torch.full((count, 1), BOS), ends], dim=1)


def to_the_right(tokens: Tensor) -> Tensor:
    """The same rows with the padding on the left."""
    order = (tokens != PAD).long().argsort(dim=1, stable=True)
    return tokens.gather(1, order)


def main() -> None:
    job = Job(
        steps=300,
        faults=["padding-side", "pairs-misaligned", "position-buffer-empty", "own-predictions"],
        at_start=["schedule-exponent"],
        recipes=["plain", "scheduled-sampling"],
    )
    generator = torch.Generator().manual_seed(job.seed)
    table = torch.randint(0, WORDS, (2, WORDS), generator=generator)
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    warmup = 60

    def paper_schedule(step: int) -> float:
        power = 0.5 if job.fault == "schedule-exponent" else -0.5
        return 0.2 * WIDTH**-0.5 * min((step + 1) ** power, (step + 1) * warmup**-1.5)

    if job.fault == "schedule-exponent":
        warmup = 12
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, paper_schedule)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.05)
    before = torch.zeros(0)
    for step in range(job.steps):
        model.train()
        source, target = make_pairs(32, generator, table)
        source_now = source
        if job.on("padding-side", step):
            source_now = to_the_right(source)
        if job.on("pairs-misaligned", step):
            source_now = before
        before = source
        if job.once("position-buffer-empty", step):
            model.positions.table = torch.zeros_like(model.positions.table)
        given = target[:, :-1]
        share = 0.25 * step / job.steps if job.recipe == "scheduled-sampling" else 0.0
        if job.on("own-predictions", step):
            share = 1.0
        if share:
            with torch.no_grad():
                guess = model(source_now, given).argmax(-1)[:, :-1]
            guess = torch.cat([given[:, :1], guess], dim=1)
            swap = (torch.rand(given.shape) < share) & (given >= FIRST)
            given = torch.where(swap, guess, given)
        logits = model(source_now, given)
        loss = criterion(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        accuracy = (logits.argmax(-1) == target[:, 1:])[target[:, 1:] != PAD].float().mean()
        job.log(step, loss.item(), accuracy=accuracy.item(), rate=scheduler.get_last_lr()[0])
    job.finish(model)


if __name__ == "__main__":
    main()
