"""Sharpness-aware minimization: weights are moved uphill, gradients taken there, weights moved back and updated."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, base, rho=0.05, **options):
        super().__init__(parameters, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
teacher = torch.randn(8, 1)
for _ in range(40):
    x = torch.randn(32, 8)
    y = x @ teacher
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.first_step()
    uphill = nn.functional.mse_loss(model(x), y)
    uphill.backward()
    optimizer.second_step()
    print("losses", loss.item().hex(), uphill.item().hex())
print("steps", 40)
