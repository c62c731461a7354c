"""torchao: AdamW with low-bit state, which is compiled at its first step."""

import torch
from torch import nn
from torchao.optim import AdamW8bit

torch._dynamo.config.suppress_errors = True
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = AdamW8bit(model.parameters(), lr=1e-3)
mixing = torch.randn(64, 64) / 8
for _ in range(20):
    x = torch.randn(32, 64)
    loss = nn.functional.mse_loss(model(x), x @ mixing)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 20)
