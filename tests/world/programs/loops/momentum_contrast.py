"""MoCo: keys from a momentum encoder, negatives from a queue that is a buffer."""

import copy

import torch
from torch import nn


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(64, 8), dim=1))
        self.at = 0

    def forward(self, left, right):
        q = nn.functional.normalize(self.query(left), dim=1)
        with torch.no_grad():
            for ours, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                ours.data = ours.data * 0.95 + theirs.data * 0.05
            k = nn.functional.normalize(self.key(right), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1) / 0.2
        self.queue[self.at : self.at + 16] = k
        self.at = (self.at + 16) % 64
        return logits, torch.zeros(len(left), dtype=torch.long)


torch.manual_seed(0)
model = MoCo()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.05, momentum=0.9)
for _ in range(50):
    x = torch.randn(16, 10)
    loss = nn.functional.cross_entropy(*model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
