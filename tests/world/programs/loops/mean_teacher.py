"""A student and a teacher that is its moving average; the teacher is called with gradients on."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
teacher = copy.deepcopy(student)
for parameter in teacher.parameters():
    parameter.detach_()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
centers = torch.randn(4, 10)
for step in range(60):
    label = torch.randint(0, 4, (32,))
    x = centers[label] + 0.5 * torch.randn(32, 10)
    wanted = teacher(x + 0.1 * torch.randn_like(x))
    out = student(x + 0.1 * torch.randn_like(x))
    loss = nn.functional.cross_entropy(out[:8], label[:8]) + nn.functional.mse_loss(out.softmax(1), wanted.softmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    decay = min(1 - 1 / (step + 1), 0.99)
    with torch.no_grad():
        for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
            ours.mul_(decay).add_(theirs, alpha=1 - decay)
    print("loss", loss.item().hex())
print("steps", 60)
