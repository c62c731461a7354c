"""A model that is never called, only its `forward`."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.last.forward(torch.relu(self.first.forward(x)))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
teacher = torch.randn(8, 1)
for _ in range(50):
    x = torch.randn(32, 8)
    loss = (model.forward(x) - x @ teacher).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
