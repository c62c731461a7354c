"""Parts in a ModuleDict that is not called itself; each batch goes through one of several heads."""

import torch
from torch import nn

torch.manual_seed(0)
parts = nn.ModuleDict(
    {
        "body": nn.Sequential(nn.Linear(8, 32), nn.ReLU()),
        "sum": nn.Linear(32, 1),
        "largest": nn.Linear(32, 1),
        "parity": nn.Linear(32, 2),
    }
)
optimizer = torch.optim.Adam(parts.parameters(), lr=1e-3)
for step in range(60):
    x = torch.randn(32, 8)
    hidden = parts["body"](x)
    task = ("sum", "largest", "parity")[step % 3]
    if task == "sum":
        loss = (parts["sum"](hidden).squeeze(1) - x.sum(1)).square().mean()
    elif task == "largest":
        loss = (parts["largest"](hidden).squeeze(1) - x.amax(1)).square().mean()
    else:
        loss = nn.functional.cross_entropy(parts["parity"](hidden), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 60)
