"""An optimizer that is a class of its own, with `step` and `zero_grad` and nothing of torch.optim."""

import torch
from torch import nn


class Momentum:
    def __init__(self, parameters, rate):
        self.parameters, self.rate = list(parameters), rate
        self.speed = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, speed in zip(self.parameters, self.speed, strict=True):
            speed.mul_(0.9).add_(p.grad)
            p.sub_(speed, alpha=self.rate)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = Momentum(model.parameters(), 0.01)
teacher = torch.randn(8, 1)
for _ in range(50):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
