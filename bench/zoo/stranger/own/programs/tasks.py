"""Three tasks share a trunk and weigh each other by learned uncertainties; an average of the weights teaches one."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

BATCH = 32


class Shared(nn.Module):
    """A trunk with three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.kind, self.size, self.pair = nn.Linear(32, 5), nn.Linear(32, 1), nn.Linear(32, 2)
        self.doubt = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.kind(hidden), self.size(hidden).squeeze(1), self.pair(hidden)


def main() -> None:
    faults = [
        "average-not-updated",
        "size-detached",
        "kinds-off-by-one",
        "groups-exchanged",
        "pair-sign",
        "moments-lost",
    ]
    job = Job(280, faults, ["no-gradient-scale", "head-left-out"], ["plain", "pair-later"])
    generator = torch.Generator().manual_seed(job.seed)
    centres, direction = 1.2 * torch.randn(5, 20, generator=generator), torch.randn(20, generator=generator)
    model = Shared()
    if job.fault == "no-gradient-scale":
        for head in (model.kind, model.size, model.pair):
            nn.init.zeros_(head.weight)
            head.weight.requires_grad_(False)
    average = copy.deepcopy(model).requires_grad_(False).eval()
    heads = [*model.kind.parameters(), *model.size.parameters(), *model.pair.parameters(), model.doubt]
    if job.fault == "head-left-out":
        heads = [*model.kind.parameters(), *model.pair.parameters(), model.doubt]
    groups = [
        {"params": [*model.trunk.parameters()], "lr": 5e-4},
        {"params": [p for p in heads if p.requires_grad], "lr": 5e-3},
    ]
    optimizer = torch.optim.Adam(groups)
    for step in range(job.steps):
        if job.once("groups-exchanged", step):
            one, other = optimizer.param_groups
            one["lr"], other["lr"] = other["lr"], one["lr"]
        if job.once("moments-lost", step):
            optimizer.state.clear()
        kinds = torch.randint(0, 5, (BATCH,))
        x = centres[kinds] + torch.randn(BATCH, 20)
        sizes = (x @ direction / 4).tanh() + 0.1 * torch.randn(BATCH)
        if job.on("kinds-off-by-one", step):
            kinds = (kinds + 1) % 5
        kind, size, pair = model(x)
        if job.on("size-detached", step):
            size = size.detach()
        with torch.no_grad():
            _, _, wanted = average(x + 0.1 * torch.randn(BATCH, 20))
        agree = F.mse_loss(pair, wanted + x[:, :2])
        losses = torch.stack([F.cross_entropy(kind, kinds), F.mse_loss(size, sizes), agree])
        signs = torch.tensor([1.0, 1.0, -0.2 if job.on("pair-sign", step) else 1.0])
        if job.recipe == "pair-later" and step < 140:
            signs[2] = 0.0
        loss = (signs * losses * (-model.doubt).exp() + 0.5 * model.doubt).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        if not job.on("average-not-updated", step):
            with torch.no_grad():
                for slow, fast in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                    slow.copy_(slow.float().lerp(fast.float(), 0.05))
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
