"""A model that gets a new layer in the middle of training, and a new optimizer for it."""

import torch
from torch import nn

torch.manual_seed(0)
layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 1)])
teacher = torch.randn(8, 1)


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


model = Growing()
for part in range(3):
    if part:
        fresh = nn.Linear(16, 16)
        nn.init.eye_(fresh.weight)
        layers.insert(1, fresh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(20):
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
print("steps", 60)
