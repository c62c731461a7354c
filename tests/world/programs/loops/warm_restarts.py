"""A learning rate that is restarted from its top again and again, stepped at every batch."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=15, T_mult=2, eta_min=1e-4)
teacher = torch.randn(8, 1)
for _ in range(90):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher + 0.1 * torch.randn(32, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    print("loss", loss.item().hex())
print("steps", 90)
