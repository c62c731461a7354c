"""schedulefree: AdamWScheduleFree, whose `train` and `eval` exchange weights around each validation."""

import schedulefree
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=3e-3, warmup_steps=10)
teacher = torch.randn(8, 1)
for _ in range(6):
    model.train()
    optimizer.train()
    for _ in range(12):
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
    model.eval()
    optimizer.eval()
    with torch.no_grad():
        x = torch.randn(64, 8)
        print("validation", nn.functional.mse_loss(model(x), x @ teacher).item().hex())
print("steps", 72)
