"""Fine-tuning that thaws a layer at a time, with parameter groups added as it goes."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
for layer in (model[0], model[2]):
    layer.requires_grad_(False)
optimizer = torch.optim.Adam(model[4].parameters(), lr=1e-3)
teacher = torch.randn(8, 1)
for step in range(60):
    if step in (20, 40):
        layer = model[2 if step == 20 else 0]
        layer.requires_grad_(True)
        optimizer.add_param_group({"params": layer.parameters(), "lr": 5e-4})
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 60)
