"""Quantiles of tomorrow's load from patches of the past, under Lightning: reversible normalisation, calendar."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import lightning
import torch
from common import Job
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PAST, FUTURE, PATCH, WIDTH, SITES, DAY = 96, 24, 12, 48, 24, 24
QUANTILES = (0.1, 0.5, 0.9)


class Load(Dataset):
    """Windows of hourly load of several sites, with the hour of day and the day of week of each hour."""

    def __init__(self, seed: int, hours: int = 1400) -> None:
        generator = torch.Generator().manual_seed(seed)
        time = torch.arange(hours)
        scale = torch.exp(0.3 * torch.randn(SITES, 1, generator=generator))
        phase = 2 * torch.randn(SITES, 1, generator=generator)
        daily = (2 * math.pi * (time + phase) / DAY).sin() + 0.4 * (4 * math.pi * time / DAY).cos()
        weekend = ((time // DAY) % 7 >= 5).float()
        noise = torch.randn(SITES, hours, generator=generator)
        slow = torch.zeros(SITES, hours)
        for hour in range(1, hours):
            slow[:, hour] = 0.97 * slow[:, hour - 1] + 0.15 * noise[:, hour]
        more = 0.25 * torch.randn(SITES, hours, generator=generator)
        self.load = scale * (3 + daily * (1 - 0.6 * weekend) - 0.5 * weekend + slow + more)
        angle = 2 * math.pi * time / DAY
        self.calendar = torch.stack([angle.sin(), angle.cos(), weekend], dim=1)
        self.windows = hours - PAST - FUTURE

    def __len__(self) -> int:
        return SITES * self.windows

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        site, start = row % SITES, row // SITES
        values = self.load[site, start : start + PAST + FUTURE]
        return values[:PAST], values[PAST:], self.calendar[start : start + PAST + FUTURE]


class PatchNet(nn.Module):
    """Patches of the past and the calendar of the future to quantiles of the future."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(PATCH, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(PAST // PATCH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, 0.05, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.calendar = nn.Linear(3 * FUTURE, WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH * (PAST // PATCH + 1), 96), nn.GELU())
        self.out = nn.Linear(96, FUTURE * len(QUANTILES))

    def forward(self, past: Tensor, calendar: Tensor) -> Tensor:
        x = self.patch(past.unflatten(1, (-1, PATCH))) + self.position
        x = torch.cat([self.encoder(x).flatten(1), self.calendar(calendar.flatten(1))], dim=1)
        return self.out(self.head(x))


class Forecaster(lightning.LightningModule):
    """Normalise a window, predict, undo it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.net = PatchNet()

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        step, job = self.global_step, self.job
        past, future, calendar = batch
        ahead = calendar[:, PAST:]
        if job.on("clock-shifted", step):
            ahead = calendar[:, PAST - 9 : PAST + FUTURE - 9]
        known = torch.cat([past, future], dim=1) if job.on("statistics-of-the-future", step) else past
        mean, spread = known.mean(1, keepdim=True), known.std(1, keepdim=True) + 1e-3
        found = self.net((past - mean) / spread, ahead)
        found = found.view(len(past), FUTURE, len(QUANTILES))
        if not job.on("scale-not-undone", step):
            found = found * spread[..., None] + mean[..., None]
        levels = torch.tensor(QUANTILES[::-1] if job.on("levels-reversed", step) else QUANTILES)
        miss = future[..., None] - found
        each = torch.maximum(levels * miss, (levels - 1) * miss)
        if job.recipe == "horizon-grows":
            each = each[:, : 6 if step < 80 else 12 if step < 160 else FUTURE]
        loss = each.mean()
        self.log("pinball", loss)
        job.log(step, loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.RAdam(self.net.parameters(), lr=3e-3, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.job.steps, eta_min=1e-4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    job = Job(
        steps=260,
        faults=["statistics-of-the-future", "scale-not-undone", "levels-reversed", "clock-shifted"],
        recipes=["plain", "horizon-grows", "averaged-late"],
    )
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    callbacks: list[lightning.Callback] = []
    if job.recipe == "averaged-late":
        callbacks.append(lightning.pytorch.callbacks.StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=2))
    loader = DataLoader(Load(job.seed), batch_size=32, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(
        max_steps=job.steps,
        max_epochs=4,
        limit_train_batches=65,
        accelerator="cpu",
        precision="32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        callbacks=callbacks,
    )
    forecaster = Forecaster(job)
    trainer.fit(forecaster, loader)
    job.finish(forecaster.net)


if __name__ == "__main__":
    main()
