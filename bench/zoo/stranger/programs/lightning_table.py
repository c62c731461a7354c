"""A tabular network under Lightning: embeddings of categories, numbers beside them, a step schedule."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from common import Job, Sampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

SIZES, NUMBERS = (8, 12, 5, 20), 10


class Rows(IterableDataset):
    """Batches of categories, numbers and prices."""

    def __init__(self, job: Job) -> None:
        generator = torch.Generator().manual_seed(job.seed)
        self.job = job
        self.sampler = Sampler(9000, job.seed)
        self.kinds = torch.stack([torch.randint(0, size, (9000,), generator=generator) for size in SIZES], dim=1)
        self.numbers = torch.randn(9000, NUMBERS, generator=generator)
        worth = [torch.randn(size, generator=generator) for size in SIZES]
        price = sum(table[self.kinds[:, column]] for column, table in enumerate(worth))
        slopes = torch.randn(NUMBERS, generator=generator) * 0.5
        price = price + (self.numbers @ slopes).tanh() * 2 + self.numbers[:, 0] * worth[0][self.kinds[:, 0]]
        self.prices = price + 0.1 * torch.randn(9000, generator=generator)

    def __iter__(self) -> Any:
        step = 0
        while True:
            chosen = self.sampler.take(64)
            kinds, numbers, prices = self.kinds[chosen], self.numbers[chosen], self.prices[chosen]
            if self.job.on("columns-moved", step):
                kinds = kinds[:, [2, 0, 2, 1]]
            if self.job.on("numbers-unscaled", step):
                numbers = numbers * torch.linspace(1, 60, NUMBERS)
            if self.job.on("prices-in-cents", step):
                prices = prices * 100
            if self.job.on("column-empty", step):
                kinds = kinds.clone()
                kinds[:, 3] = 0
            yield kinds, numbers, prices
            step += 1


class Pricing(lightning.LightningModule):
    """Categories become vectors; a network of three layers makes the price."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in SIZES)
        self.net = nn.Sequential(
            nn.Linear(8 * len(SIZES) + NUMBERS, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1)
        )

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.job.on("tables-no-grad", self.global_step)):
            vectors = [table(kinds[:, column]) for column, table in enumerate(self.tables)]
        return self.net(torch.cat([*vectors, numbers], dim=1))[:, 0]

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], number: int) -> Tensor:
        kinds, numbers, prices = batch
        loss = nn.functional.mse_loss(self(kinds, numbers), prices)
        self.job.log(self.global_step, loss.item())
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.job.on("rate-zero", self.global_step):
            for group in optimizer.param_groups:
                group["lr"] = 0.0

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.NAdam(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 150, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    job = Job(
        steps=360,
        faults=["columns-moved", "numbers-unscaled", "prices-in-cents", "column-empty", "tables-no-grad", "rate-zero"],
    )
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = Pricing(job)
    trainer = lightning.Trainer(
        max_steps=job.steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=5.0,
    )
    trainer.fit(model, DataLoader(Rows(job), batch_size=None))
    job.finish(model)


if __name__ == "__main__":
    main()
