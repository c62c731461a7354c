"""Two backward passes through one forward before the update, and a loss of several elements."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(50):
    x = torch.randn(32, 8)
    out = model(x)
    first = (out[:, 0] - x.sum(1)).square()
    second = (out[:, 1] - x.amax(1)).square().mean()
    optimizer.zero_grad()
    first.backward(torch.full((32,), 1 / 32), retain_graph=True)
    second.backward()
    optimizer.step()
    print("losses", first.mean().item().hex(), second.item().hex())
print("steps", 50)
