"""Adversarial training: backward passes for the inputs leave gradients in the weights that are then thrown away."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
centers = torch.randn(3, 8)
for _ in range(50):
    label = torch.randint(0, 3, (32,))
    x = centers[label] + 0.5 * torch.randn(32, 8)
    moved = x.clone()
    for _ in range(2):
        moved.requires_grad_()
        nn.functional.cross_entropy(model(moved), label).backward()
        moved = (moved + 0.05 * moved.grad.sign()).detach()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(moved), label)
    loss.backward()
    optimizer.step()
    print("losses", loss.item().hex())
print("steps", 50)
