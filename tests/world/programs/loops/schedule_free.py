"""A schedule-free optimizer written by hand: `train` and `eval` exchange the weights for others and back."""

import torch
from torch import nn


class ScheduleFreeSGD(torch.optim.Optimizer):
    def __init__(self, parameters, lr, beta=0.9):
        super().__init__(parameters, {"lr": lr, "beta": beta, "k": 0, "train_mode": True})

    def _move(self, to_train):
        for group in self.param_groups:
            if group["train_mode"] == to_train:
                continue
            weight = 1 - group["beta"] if to_train else 1 - 1 / group["beta"]
            for p in group["params"]:
                if "z" in self.state[p]:
                    p.data.lerp_(end=self.state[p]["z"], weight=weight)
            group["train_mode"] = to_train

    def train(self):
        self._move(True)

    def eval(self):
        self._move(False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            share = 1 / group["k"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(end=z, weight=share)
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                z.sub_(p.grad, alpha=group["lr"])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = ScheduleFreeSGD(model.parameters(), lr=0.1)
teacher = torch.randn(8, 1)
for _ in range(6):
    model.train()
    optimizer.train()
    for _ in range(10):
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
    model.eval()
    optimizer.eval()
    with torch.no_grad():
        x = torch.randn(64, 8)
        print("validation", nn.functional.mse_loss(model(x), x @ teacher).item().hex())
print("steps", 60)
