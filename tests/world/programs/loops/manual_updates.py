"""No optimizer at all: weights are updated under no_grad, as in the first lesson of every course."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
teacher = torch.randn(8, 1)
for _ in range(50):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad
    print("loss", loss.item().hex())
print("steps", 50)
