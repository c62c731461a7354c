"""LoRA by hand: frozen weights, a random and a zero matrix beside each, merged at the end."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


torch.manual_seed(0)
model = nn.Sequential(Adapted(nn.Linear(8, 32)), nn.ReLU(), Adapted(nn.Linear(32, 1)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
teacher = torch.randn(8, 1)
for _ in range(60):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
with torch.no_grad():
    for part in (model[0], model[2]):
        part.base.weight += part.up @ part.down
        part.up.zero_()
    print("validation", nn.functional.mse_loss(model(x), x @ teacher).item().hex())
print("steps", 60)
