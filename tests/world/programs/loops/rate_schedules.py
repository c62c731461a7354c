"""Step decay, a rate lowered on a plateau, one cycle and an exponential decay per epoch, one after the other."""

import torch
from torch import nn
from torch.optim import lr_scheduler

torch.manual_seed(0)
teacher = torch.randn(8, 1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def epoch(schedule=None):
    total = 0.0
    for _ in range(10):
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x @ teacher + 0.1 * torch.randn(32, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        total += loss.item()
        print("loss", loss.item().hex())
    return total / 10


steps = lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4], gamma=0.1)
for _ in range(5):
    epoch()
    steps.step()
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
for _ in range(3):
    plateau.step(epoch())
cycle = lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=30)
for _ in range(3):
    epoch(cycle)
exponential = lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
for _ in range(3):
    epoch()
    exponential.step()
print("steps", 140)
