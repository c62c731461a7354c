"""Three models of different sizes, trained in one loop, each with its optimizer and its backward."""

import torch
from torch import nn

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1)) for width in (8, 16, 32)]
optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
teacher = torch.randn(8, 1)
for _ in range(50):
    x = torch.randn(32, 8)
    found = []
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x @ teacher)
        loss.backward()
        optimizer.step()
        found.append(loss.item().hex())
    print("losses", *found)
print("steps", 50)
