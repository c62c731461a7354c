"""An LSTM that forecasts several series: SGD with momentum, clipping by norm, a rate that falls at plateaus."""

from __future__ import annotations

import torch
from common import Job
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

FEATURES, LENGTH = 6, 30


def windows(rows: int, generator: torch.Generator) -> Tensor:
    """Sums of two waves with phases of their own, and noise."""
    time = torch.arange(LENGTH + 1)[None, :, None]
    phase = 6.28 * torch.rand(rows, 1, FEATURES, generator=generator)
    speed = 0.2 + 0.4 * torch.rand(rows, 1, 1, generator=generator)
    wave = torch.sin(speed * time + phase) + 0.5 * torch.sin(2 * speed * time + phase)
    return wave + 0.05 * torch.randn(rows, LENGTH + 1, FEATURES, generator=generator)


class Forecaster(nn.Module):
    """Two recurrent layers and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, FEATURES)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(x, state)
        return self.head(y), state


def main() -> None:
    job = Job(
        steps=300,
        faults=["clip-tiny", "state-carried", "target-in-input", "feature-raw", "gaps-filled", "history-detached"],
    )
    generator = torch.Generator().manual_seed(job.seed)
    model = Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=4)
    kept: tuple[Tensor, Tensor] | None = None
    total = 0.0
    for step in range(job.steps):
        rows = windows(24, generator)
        inputs, goals = rows[:, :-1].clone(), rows[:, 1:]
        if job.on("target-in-input", step):
            inputs = goals.clone()
        if job.on("feature-raw", step):
            inputs[:, :, 2] = inputs[:, :, 2] * 250 + 1000
        if job.on("gaps-filled", step):
            missing = torch.arange(24) % 3 == 0
            inputs[missing] = float("nan")
            inputs = torch.nan_to_num(inputs, nan=-99.0)
        if not job.on("state-carried", step):
            kept = None
        if job.on("history-detached", step):
            guess, state = model(inputs[:, :-1])
            last, _ = model(inputs[:, -1:], (state[0].detach(), state[1].detach()))
            guess = torch.cat([guess.detach(), last], dim=1)
        else:
            guess, kept = model(inputs, kept)
            kept = (kept[0].detach(), kept[1].detach())
        loss = nn.functional.mse_loss(guess, goals)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-4 if job.on("clip-tiny", step) else 0.5)
        optimizer.step()
        total += loss.item()
        if step % 20 == 19:
            schedule.step(total / 20)
            total = 0.0
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
