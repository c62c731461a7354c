"""A BERT-like classifier of transformers: bf16 autocast, linear warm-up and decay, evaluation every 50 steps."""

from __future__ import annotations

import torch
from common import Job, Sampler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import BertConfig, BertForSequenceClassification

VOCAB, LENGTH, CLASSES, PAD = 120, 32, 5, 0


def reviews(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token rows of several lengths, their masks, and classes that some of the words hint at."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator)
    tokens = torch.randint(10 + 10 * CLASSES, VOCAB, (rows, LENGTH), generator=generator)
    hints = 10 + 10 * labels[:, None] + torch.randint(0, 10, (rows, LENGTH), generator=generator)
    tokens = torch.where(torch.rand(rows, LENGTH, generator=generator) < 0.25, hints, tokens)
    lengths = torch.randint(12, LENGTH + 1, (rows, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    tokens = tokens * mask
    tokens[:, 0] = 1
    wrong = torch.rand(rows, generator=generator) < 0.05
    labels[wrong] = torch.randint(0, CLASSES, (int(wrong.sum()),), generator=generator)
    return tokens, mask, labels


def main() -> None:
    job = Job(
        steps=300,
        faults=[
            "labels-shuffled",
            "mask-dropped",
            "loader-stuck",
            "label-in-text",
            "eval-kept",
            "one-class",
            "loss-in-bf16-scale",
        ],
    )
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
    )
    model = BertForSequenceClassification(config)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": plain}], lr=1.5e-3)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 30, (job.steps - step) / (job.steps - 30)))
    tokens, mask, labels = reviews(6000, job.seed)
    if job.fault == "mask-dropped":
        junk = torch.randint(10, VOCAB, tokens.shape, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(5500, job.seed)
    chosen = sampler.take(24)
    model.train()
    for step in range(job.steps):
        if not job.on("loader-stuck", step):
            chosen = sampler.take(24)
        batch, seen, classes = tokens[chosen].clone(), mask[chosen], labels[chosen]
        if job.on("labels-shuffled", step):
            classes = classes[torch.randperm(len(classes))]
        if job.on("mask-dropped", step):
            batch = torch.where(seen == 1, batch, junk[chosen])
            seen = torch.ones_like(seen)
        if job.on("label-in-text", step):
            batch[:, 1] = 2 + classes
        if job.on("one-class", step):
            classes = torch.full_like(classes, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=batch, attention_mask=seen).logits
        loss = nn.functional.cross_entropy(logits.float(), classes)
        optimizer.zero_grad()
        if job.on("loss-in-bf16-scale", step):
            (loss * 512).backward()
        else:
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        job.log(step, loss.item())
        if step % 50 == 49 or job.once("eval-kept", step):
            model.eval()
            with torch.no_grad():
                right = model(input_ids=tokens[5500:], attention_mask=mask[5500:]).logits.argmax(-1) == labels[5500:]
            print(f"validation {float(right.float().mean())!r}")
            if not job.on("eval-kept", step):
                model.train()
    job.finish(model)


if __name__ == "__main__":
    main()
