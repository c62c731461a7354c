"""Letters from a stream of sounds: convolution, GRU, CTC with lengths, masks in time, Adam with a warm-up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

LETTERS, BANDS, BATCH = 8, 12, 16


class Listener(nn.Module):
    """Every second frame of sound to letters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(BANDS, 32, 5, 2, 2), nn.BatchNorm1d(32)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(64, LETTERS + 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x.transpose(1, 2))))
        hidden, _ = self.rnn(x.transpose(1, 2))
        return self.out(self.drop(hidden))


def sounds(rows: int, voices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each letter sounds for some frames."""
    letters = torch.randint(0, LETTERS, (rows, 5))
    counts = torch.randint(3, 6, (rows,))
    frames = voices[letters].repeat_interleave(6, 1)
    ends = counts * 6
    is_there = torch.arange(30) < ends[:, None]
    return frames * is_there[..., None] + 0.5 * torch.randn(rows, 30, BANDS), letters + 1, ends, counts


def main() -> None:
    faults = ["letters-reversed", "blank-elsewhere", "frames-not-halved", "masked-away", "lengths-full"]
    job = Job(280, faults, ["never-in-training", "betas-swapped"], ["plain", "wider-masks"])
    voices = torch.randn(LETTERS, BANDS, generator=torch.Generator().manual_seed(job.seed))
    model = Listener()
    if job.fault == "never-in-training":
        model.eval()
    betas = (0.999, 0.9) if job.fault == "betas-swapped" else (0.9, 0.999)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
    for step in range(job.steps):
        frames, letters, ends, counts = sounds(BATCH, voices)
        if job.on("letters-reversed", step):
            for row, count in enumerate(counts.tolist()):
                letters[row, :count] = letters[row, :count].flip(0)
        if job.on("masked-away", step):
            frames = frames * (torch.rand(BATCH, 1, BANDS) > 0.8)
        width = 8 if job.recipe == "wider-masks" and step >= 140 else 3
        begin = int(torch.randint(0, 20, ()))
        frames[:, begin : begin + width] = 0
        logits = model(frames)
        lengths = ends if job.on("frames-not-halved", step) else (ends + 1) // 2
        lengths = torch.full_like(ends, 15) if job.on("lengths-full", step) else lengths.clamp(max=15)
        blank = LETTERS if job.on("blank-elsewhere", step) else 0
        targets = (letters - 1) if job.on("blank-elsewhere", step) else letters
        loss = F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), targets, lengths, counts, blank=blank)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
