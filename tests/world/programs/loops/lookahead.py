"""Lookahead around Adam: every five updates the weights go back half way to slow copies."""

import torch
from torch import nn


class Lookahead:
    def __init__(self, inner, every=5, share=0.5):
        self.inner, self.every, self.share, self.count = inner, every, share, 0
        self.slow = {p: p.detach().clone() for group in inner.param_groups for p in group["params"]}

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.every == 0:
            with torch.no_grad():
                for fast, slow in self.slow.items():
                    slow.lerp_(fast, self.share)
                    fast.copy_(slow)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=2e-3))
teacher = torch.randn(8, 1)
for _ in range(60):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 60)
