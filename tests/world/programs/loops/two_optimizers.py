"""Encoder and decoder with an optimizer each; both update in every step, after one backward."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))
first = torch.optim.Adam(encoder.parameters(), lr=1e-3)
second = torch.optim.SGD(decoder.parameters(), lr=0.05)
mixing = torch.randn(4, 12)
for _ in range(60):
    x = torch.randn(32, 4) @ mixing
    loss = nn.functional.mse_loss(decoder(encoder(x)), x)
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    first.step()
    second.step()
    print("loss", loss.item().hex())
print("steps", 60)
