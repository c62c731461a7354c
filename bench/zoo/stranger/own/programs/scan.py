"""Which of two sums is larger: layers with a linear recurrence over the sequence, gates, RMSprop."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

WIDTH, LENGTH, BATCH = 24, 20, 32
CODE = SimpleNamespace(gate=True, backwards=False, slow=1.0, average=True)


class Scan(nn.Module):
    """A state that decays and takes something in at each place."""

    def __init__(self, far: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.enter, self.leave = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.linspace(1, 4, WIDTH) * far)
        self.pace = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        given, gate = self.enter(self.norm(x)).chunk(2, -1)
        step = F.softplus(self.pace(x)) * CODE.slow
        keep = (-step * torch.sigmoid(self.decay)).exp()
        state, found = torch.zeros(len(x), WIDTH), []
        order = range(x.shape[1])
        for at in reversed(order) if CODE.backwards else order:
            state = keep[:, at] * state + (1 - keep[:, at]) * given[:, at]
            found.append(state)
        y = torch.stack(found, 1)
        return x + self.leave(y * F.silu(gate) if CODE.gate else y)


class Model(nn.Module):
    """Two layers and a mean."""

    def __init__(self, far: float) -> None:
        super().__init__()
        self.enter, self.layers = nn.Linear(3, WIDTH), nn.ModuleList(Scan(far) for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1) if CODE.average else x[:, -1])


def main() -> None:
    faults = ["gate-skipped", "read-backwards", "steps-too-short", "last-place-only", "classes-swapped"]
    job = Job(220, faults, ["rate-tiny", "inputs-huge"], ["plain", "longer"])
    model = Model(1.0)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-9 if job.fault == "rate-tiny" else 2e-3, alpha=0.95)
    for step in range(job.steps):
        CODE.gate, CODE.backwards = not job.on("gate-skipped", step), job.on("read-backwards", step)
        CODE.slow, CODE.average = 0.1 if job.on("steps-too-short", step) else 1.0, not job.on("last-place-only", step)
        x = torch.randn(BATCH, 28 if job.recipe == "longer" and step >= 110 else LENGTH, 3)
        likes = x[..., 0] * (x[..., 2] > 0)
        truth = (likes.sum(1) > (x[..., 1] * (x[..., 2] <= 0)).sum(1)).long()
        truth = torch.where(torch.rand(BATCH) < 0.05, 1 - truth, truth)
        if job.on("classes-swapped", step):
            truth = 1 - truth
        loss = F.cross_entropy(model(x * 200 if job.fault == "inputs-huge" else x), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
