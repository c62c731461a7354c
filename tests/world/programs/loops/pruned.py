"""Pruning in the middle of training: masks are laid over weights, and stay."""

import torch
from torch import nn
from torch.nn.utils import prune

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
teacher = torch.randn(8, 1)
for step in range(60):
    if step in (20, 40):
        prune.l1_unstructured(model[0], "weight", amount=0.2)
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
prune.remove(model[0], "weight")
print("steps", 60)
