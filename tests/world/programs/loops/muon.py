"""Muon for the matrices, AdamW for the rest, zeroed through the model."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
matrices = [p for p in model.parameters() if p.dim() == 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizers = [torch.optim.Muon(matrices, lr=2e-3), torch.optim.AdamW(rest, lr=1e-3)]
teacher = torch.randn(8, 1)
for _ in range(50):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    model.zero_grad(set_to_none=False)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
