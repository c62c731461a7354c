"""Patience: when the validation loss rises, the best weights are put back and the rate is halved."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
x, noise = torch.randn(96, 8), torch.randn(96, 1)
y = x[:, :1] * x[:, 1:2] + 0.3 * noise
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
lowest, best, patience, steps = float("inf"), None, 2, 0
for _ in range(16):
    model.train()
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        steps += 1
        print("loss", loss.item().hex())
    model.eval()
    with torch.no_grad():
        validation = nn.functional.mse_loss(model(x[64:]), y[64:]).item()
    print("validation", validation.hex())
    if validation < lowest:
        lowest, best, patience = validation, copy.deepcopy(model.state_dict()), 2
    else:
        patience -= 1
    if patience == 0:
        model.load_state_dict(best)
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        patience = 2
print("steps", steps)
