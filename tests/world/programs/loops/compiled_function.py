"""The loss is computed by a compiled function that calls the model."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
teacher = torch.randn(8, 1)


@torch.compile(backend="aot_eager")
def loss_of(x, y):
    return nn.functional.mse_loss(model(x), y)


for _ in range(30):
    x = torch.randn(32, 8)
    loss = loss_of(x, x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 30)
