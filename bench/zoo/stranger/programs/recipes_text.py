"""Healthy trainings of a small language model with unusual but legal recipes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler, topic_text
from torch import Tensor, nn

VOCAB, LENGTH, WIDTH = 64, 32, 64
RECIPES = [
    "longer-sequences",
    "tasks-in-turn",
    "sparse-embedding",
    "layers-at-random",
    "rate-by-depth",
    "masked-words",
    "accumulation-grows",
    "three-phases",
]


class Model(nn.Module):
    """Embedding, a standard encoder with or without a causal mask, a head."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH, sparse=sparse)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, causal: bool = True, skipped: int = -1) -> Tensor:
        length = tokens.shape[1]
        x = self.embed(tokens) + self.position(torch.arange(length))
        mask = torch.full((length, length), float("-inf")).triu(1) if causal else None
        for number, layer in enumerate(self.layers):
            if number != skipped:
                x = layer(x, src_mask=mask)
        return self.head(x)


def main() -> None:
    job = Job(steps=300, recipes=RECIPES)
    recipe = job.recipe
    text = topic_text(8000, LENGTH + 1, VOCAB, job.seed)
    other = topic_text(8000, LENGTH + 1, VOCAB, job.seed + 1)
    sampler = Sampler(len(text), job.seed)
    model = Model(recipe == "sparse-embedding")
    optimizers: list[torch.optim.Optimizer]
    if recipe == "sparse-embedding":
        rest = [p for name, p in model.named_parameters() if name != "embed.weight"]
        optimizers = [torch.optim.SparseAdam([model.embed.weight], lr=3e-3), torch.optim.AdamW(rest, lr=2e-3)]
    elif recipe == "rate-by-depth":
        parts = [model.embed, model.position, *model.layers, model.head]
        groups = [{"params": part.parameters(), "lr": 3e-3 * 0.6 ** (5 - at)} for at, part in enumerate(parts)]
        optimizers = [torch.optim.AdamW(groups)]
    elif recipe == "three-phases":
        optimizers = [torch.optim.Adagrad(model.parameters(), lr=0.02)]
    else:
        optimizers = [torch.optim.AdamW(model.parameters(), lr=2e-3)]
    for step in range(job.steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
            if recipe == "three-phases":  # warm-up, constant, straight to zero
                share = min((step + 1) / 30, 1.0, (job.steps - step) / 80)
                optimizer.param_groups[0]["lr"] = 0.02 * share
        micro = 1 + step // 100 if recipe == "accumulation-grows" else 1
        total = 0.0
        for _ in range(micro):
            chosen = sampler.take(16)
            rows = (other if recipe == "tasks-in-turn" and 120 <= step < 240 else text)[chosen]
            if recipe == "longer-sequences":
                rows = rows[:, : 9 + 8 * min(step // 70, 3)]
            if recipe == "masked-words":
                tokens, hidden = rows[:, :-1], torch.rand(16, LENGTH) < 0.25
                logits = model(tokens.masked_fill(hidden, 0), causal=False)
                loss = F.cross_entropy(logits[hidden], tokens[hidden])
            else:
                skipped = int(torch.randint(0, 6, ())) if recipe == "layers-at-random" else -1
                logits = model(rows[:, :-1], skipped=skipped)
                loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            (loss / micro).backward()
            total += loss.item() / micro
        for optimizer in optimizers:
            optimizer.step()
        job.log(step, total)
    job.finish(model)


if __name__ == "__main__":
    main()
