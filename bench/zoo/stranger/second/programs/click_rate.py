"""Click prediction with embedding tables, pairwise products and Adagrad, in the manner of DLRM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

SIZES, DENSE, WIDTH, BATCH = (400, 60, 24, 8), 5, 8, 128


class ClickModel(nn.Module):
    """Dense numbers and identifiers to the logit of a click."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, WIDTH) for size in SIZES)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
        pairs = (len(SIZES) + 1) * len(SIZES) // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 48), nn.ReLU(), nn.Linear(48, 1))
        for table in self.tables:
            nn.init.normal_(table.weight, std=std)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        low = self.bottom(dense)
        vectors = torch.stack([low, *(table(ids[:, number]) for number, table in enumerate(self.tables))], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        row, column = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
        return self.top(torch.cat([low, products[:, row, column]], dim=1)).squeeze(1)


class Traffic:
    """Users who see items; whether they click depends on hidden tastes."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.tastes = [torch.randn(size, 3, generator=self.generator) for size in SIZES]
        self.effect = torch.randn(DENSE, generator=self.generator) * 0.5
        self.names = [torch.randperm(size, generator=self.generator) for size in SIZES]
        self.items = SIZES[0]

    def take(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        counts = torch.rand(count, DENSE, generator=self.generator).log().neg().exp().clamp(max=50)
        spread = [torch.rand(count, generator=self.generator) ** 2 * size for size in (self.items, *SIZES[1:])]
        ids = torch.stack(spread, dim=1).long()
        taste = [table[ids[:, number]] for number, table in enumerate(self.tastes)]
        logit = (taste[0] * taste[1]).sum(1) + (taste[2] * taste[3]).sum(1) + counts.log1p() @ self.effect - 1.5
        clicks = (torch.rand(count, generator=self.generator) < logit.sigmoid()).float()
        return counts, ids, clicks


def main() -> None:
    job = Job(
        steps=360,
        faults=["names-hashed-anew", "clicks-not-yet-known", "accumulator-lost", "row-nan"],
        at_start=["sigmoid-twice", "tables-wide"],
        recipes=["plain", "new-items", "batch-doubles"],
    )
    traffic = Traffic(job.seed)
    other = [torch.randperm(size, generator=torch.Generator().manual_seed(job.seed + 9)) for size in SIZES]
    model = ClickModel(std=3.0 if job.fault == "tables-wide" else 0.1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03, eps=1e-8)
    if job.recipe == "new-items":
        traffic.items = 250
    for step in range(job.steps):
        if job.recipe == "new-items" and step == 180:
            traffic.items = SIZES[0]
        size = BATCH * 2 if job.recipe == "batch-doubles" and step >= 200 else BATCH
        counts, ids, clicks = traffic.take(size)
        if job.on("names-hashed-anew", step):
            ids = torch.stack([other[number][ids[:, number]] for number in range(len(SIZES))], dim=1)
        if job.on("clicks-not-yet-known", step):
            clicks = clicks * (torch.rand(size) < 0.25)
        if job.once("accumulator-lost", step):
            for state in optimizer.state.values():
                state["sum"].zero_()
        if job.once("row-nan", step):
            with torch.no_grad():
                model.tables[1].weight[59] = float("nan")
        logits = model(counts.log1p(), ids)
        if job.fault == "sigmoid-twice":
            logits = logits.sigmoid()
        loss = F.binary_cross_entropy_with_logits(logits, clicks)
        optimizer.zero_grad()
        if loss.isfinite():
            loss.backward()
            optimizer.step()
        job.log(step, loss.item(), clicked=clicks.mean().item())
    job.finish(model)


if __name__ == "__main__":
    main()
