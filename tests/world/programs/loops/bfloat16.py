"""Weights, activations and optimizer state all in bfloat16."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
teacher = torch.randn(8, 1, dtype=torch.bfloat16)
for _ in range(50):
    x = torch.randn(32, 8, dtype=torch.bfloat16)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
