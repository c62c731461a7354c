"""TorchScript: one part is scripted, one traced."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
first = torch.jit.script(nn.Sequential(nn.Linear(8, 32), nn.Tanh()))
last = torch.jit.trace(nn.Linear(32, 1), torch.randn(2, 32))
model = nn.Sequential(first, last)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
teacher = torch.randn(8, 1)
for _ in range(40):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 40)
