"""A hypernetwork: one network's output is the weights of another, which has none of its own."""

import torch
from torch import nn

torch.manual_seed(0)
hyper = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 9))
optimizer = torch.optim.Adam(hyper.parameters(), lr=1e-3)
for _ in range(50):
    task = torch.randn(16, 2)
    made = hyper(task)
    x = torch.randn(16, 20, 8)
    out = torch.einsum("btd,bd->bt", x, made[:, :8]) + made[:, 8:]
    loss = (out - x[..., 0] * task[:, :1] - task[:, 1:]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
