"""MAML: an inner loop on functional weights, an outer update through all of it."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
outer = torch.optim.Adam(model.parameters(), lr=1e-3)


def task():
    phase, size = torch.rand(()) * 3.14, 0.1 + torch.rand(()) * 4.9
    x = torch.rand(10, 1) * 10 - 5
    return x, size * torch.sin(x + phase)


for _ in range(40):
    outer.zero_grad()
    total = 0.0
    for _ in range(3):
        x, y = task()
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = nn.functional.mse_loss(functional_call(model, weights, (x[:5],)), y[:5])
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - 0.01 * s for (name, w), s in zip(weights.items(), slopes, strict=True)}
        total = total + nn.functional.mse_loss(functional_call(model, weights, (x[5:],)), y[5:])
    total.backward()
    outer.step()
    print("loss", total.item().hex())
print("steps", 40)
