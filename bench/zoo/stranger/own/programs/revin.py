"""Series of several channels are continued: each window is normalised and put back, mixed over time, Huber loss."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

PAST, AHEAD, CHANNELS, BATCH = 32, 8, 4, 24
CODE = SimpleNamespace(back=True, over=(1,))


class Forecaster(nn.Module):
    """Mixes places in time, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.offset = nn.Parameter(torch.ones(CHANNELS)), nn.Parameter(torch.zeros(CHANNELS))
        self.time1, self.time2 = nn.Linear(PAST, 48), nn.Linear(48, PAST)
        self.mix, self.drop, self.out = nn.Linear(CHANNELS, CHANNELS), nn.Dropout(0.05), nn.Linear(PAST, AHEAD)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(CODE.over, keepdim=True), x.std(CODE.over, keepdim=True) + 1e-4
        x = ((x - mean) / std * self.gain + self.offset).transpose(1, 2)
        x = x + self.drop(self.time2(F.gelu(self.time1(x))))
        y = self.out(x).transpose(1, 2)
        y = y + self.mix(y)
        y = (y - self.offset) / self.gain
        return y * std + mean if CODE.back else y


def windows(series: Tensor) -> tuple[Tensor, Tensor]:
    begin = torch.randint(0, len(series) - PAST - AHEAD, (BATCH,)).tolist()
    rows = torch.stack([series[at : at + PAST + AHEAD] for at in begin])
    return rows[:, :PAST], rows[:, PAST:]


def main() -> None:
    faults = ["not-put-back", "over-the-batch", "future-in-past", "horizon-reversed", "channel-missing"]
    job = Job(280, faults, ["decay-of-everything", "future-from-start"], ["plain", "far-weighs-less"])
    generator = torch.Generator().manual_seed(job.seed)
    time = torch.arange(3000.0)[:, None]
    phase, period = 6 * torch.rand(CHANNELS, generator=generator), 9 + 20 * torch.rand(CHANNELS, generator=generator)
    level = torch.randn(3000, CHANNELS, generator=generator).cumsum(0) * 0.05
    series = (6.28 * time / period + phase).sin() + level + 0.2 * torch.randn(3000, CHANNELS, generator=generator)
    model = Forecaster()
    decay = 100.0 if job.fault == "decay-of-everything" else 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=job.steps)
    for step in range(job.steps):
        CODE.back, CODE.over = not job.on("not-put-back", step), (0, 1) if job.on("over-the-batch", step) else (1,)
        past, ahead = windows(series)
        if job.on("future-in-past", step) or job.fault == "future-from-start":
            past = torch.cat([past[:, AHEAD:], ahead], 1)
        if job.on("horizon-reversed", step):
            ahead = ahead.flip(1)
        if job.on("channel-missing", step):
            past = past * torch.tensor([1.0, 1.0, 0.0, 1.0])
        weights = torch.ones(AHEAD, 1)
        if job.recipe == "far-weighs-less" and step >= 140:
            weights = torch.linspace(1.5, 0.5, AHEAD)[:, None]
        loss = (weights * F.huber_loss(model(past), ahead, reduction="none", delta=0.5)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
