"""A compiled model, and a compiled function around forward and loss."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1))
fast = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
teacher = torch.randn(8, 1)
for _ in range(30):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(fast(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 30)
