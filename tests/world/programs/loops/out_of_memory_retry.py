"""A step that fails is tried again with half the batch, as loops do when memory runs out."""

import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, x):
        out = self.layers(x)
        if len(x) > 32:
            raise torch.OutOfMemoryError("tried to allocate more than there is")
        return out


torch.manual_seed(0)
model = Small()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    x = torch.randn(64 if step % 8 == 3 else 16, 8)
    parts = [x]
    while True:
        optimizer.zero_grad()
        total = 0.0
        try:
            for part in parts:
                loss = (model(part) - part.mean(1, keepdim=True)).square().mean() / len(parts)
                loss.backward()
                total += loss.item()
            break
        except torch.OutOfMemoryError:
            parts = [half for part in parts for half in part.chunk(2)]
    optimizer.step()
    print("losses", total.hex())
print("steps", 40)
