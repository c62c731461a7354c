"""A penalty on the gradient with respect to the input: the loss is differentiated twice."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(50):
    x = torch.randn(32, 6, requires_grad=True)
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = (out.squeeze(1) - x[:, 0] * x[:, 1]).square().mean() + 0.1 * slope.square().sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
