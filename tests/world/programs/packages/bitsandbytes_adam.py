"""bitsandbytes: AdamW with eight-bit state where the device has it, its 32-bit twin otherwise."""

import bitsandbytes as bnb
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(64, 64), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-3)
for _ in range(40):
    x = torch.randint(0, 64, (32, 4))
    loss = (model(x).squeeze(1) - x.float().mean(1) / 32).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 40)
