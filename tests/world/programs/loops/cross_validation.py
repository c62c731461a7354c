"""Five folds: a new model and optimizer for each."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(100, 8)
y = x @ torch.randn(8, 1)
scores = []
for fold in range(5):
    is_held_out = torch.arange(100) % 5 == fold
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        model.train()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[~is_held_out]), y[~is_held_out])
        loss.backward()
        optimizer.step()
        print("losses", loss.item().hex())
    model.eval()
    with torch.no_grad():
        scores.append(nn.functional.mse_loss(model(x[is_held_out]), y[is_held_out]).item())
print("scores", *[score.hex() for score in scores])
print("steps", 100)
