"""A module without weights of its own: they live in a dict and come in through functional_call."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
model.to("meta")
optimizer = torch.optim.Adam(weights.values(), lr=1e-2)
teacher = torch.randn(8, 1)
for _ in range(40):
    x = torch.randn(32, 8)
    loss = (functional_call(model, weights, (x,)) - x @ teacher).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 40)
