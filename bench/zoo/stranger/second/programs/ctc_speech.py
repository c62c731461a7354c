"""Connectionist temporal classification of made-up speech: convolution, a two-way GRU, CTC loss, sorted first epoch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

SOUNDS, BANDS, FRAMES, BATCH = 8, 20, 48, 16


class Recogniser(nn.Module):
    """Frames to probabilities of sounds, at half the rate."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(BANDS, 48, 3, padding=1), nn.BatchNorm1d(48), nn.ReLU(), nn.MaxPool1d(2))
        self.gru = nn.GRU(48, 32, bidirectional=True, batch_first=batch_first)
        self.output = nn.Linear(64, SOUNDS + 1)

    def forward(self, spectra: Tensor) -> Tensor:
        hidden, _ = self.gru(self.conv(spectra).transpose(1, 2))
        return self.output(hidden)


class Speech:
    """Utterances: each sound is a pattern over bands that lasts three to six frames."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.randn(SOUNDS, BANDS, generator=generator).cumsum(1)
        patterns = (patterns - patterns.mean(1, keepdim=True)) / patterns.std(1, keepdim=True)
        self.spectra = torch.zeros(rows, BANDS, FRAMES)
        self.frames, self.sounds = [], []
        for row in range(rows):
            count = int(torch.randint(4, 9, (1,), generator=generator))
            sounds = torch.randint(0, SOUNDS, (count,), generator=generator)
            lasting = torch.randint(4, 7, (count,), generator=generator)
            spoken = patterns[sounds].repeat_interleave(lasting, dim=0)[:FRAMES].T
            self.spectra[row, :, : spoken.shape[1]] = spoken
            self.frames.append(spoken.shape[1])
            self.sounds.append(sounds + 1)
        self.spectra += 1.5 * torch.randn(self.spectra.shape, generator=generator)


def main() -> None:
    job = Job(
        steps=280,
        faults=["lengths-halved-again", "sounds-from-zero", "sample-rate", "power-not-log"],
        at_start=["raw-logits", "batch-time-swapped"],
        recipes=["plain", "short-first", "masked-bands"],
    )
    speech = Speech(1600, job.seed)
    frames = torch.tensor(speech.frames)
    model = Recogniser(batch_first=job.fault != "batch-time-swapped")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=job.steps, pct_start=0.15)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    order = torch.randperm(len(frames))
    by_length = frames.argsort(stable=True)
    for step in range(job.steps):
        start = step * BATCH % len(frames)
        if start == 0 and step:
            order = torch.randperm(len(frames))
        rows = order[start : start + BATCH]
        if job.recipe == "short-first" and step < 100:
            rows = by_length[start : start + BATCH]
        spectra, lengths = speech.spectra[rows], frames[rows]
        targets = [speech.sounds[row] for row in rows]
        if job.on("sample-rate", step):
            spectra = F.interpolate(spectra.transpose(1, 2), size=BANDS * 2).transpose(1, 2)[:, :BANDS]
        if job.on("power-not-log", step):
            spectra = (2 * spectra).exp()
        if job.recipe == "masked-bands" and step >= 120:
            spectra = spectra.clone()
            low = int(torch.randint(0, BANDS - 4, (1,)))
            spectra[:, low : low + 4] = 0
        if job.on("sounds-from-zero", step):
            targets = [sounds - 1 for sounds in targets]
        lengths = lengths // 2
        if job.on("lengths-halved-again", step):
            lengths = lengths // 2
        logits = model(spectra)
        scores = logits if job.fault == "raw-logits" else logits.log_softmax(-1)
        loss = ctc(scores.transpose(0, 1), torch.cat(targets), lengths, torch.tensor([len(t) for t in targets]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
