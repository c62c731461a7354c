"""Two tasks whose gradients are projected against each other and put into `.grad` by hand (PCGrad)."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
parameters = list(model.parameters())
for _ in range(50):
    x = torch.randn(32, 8)
    out = model(x)
    losses = [(out[:, 0] - x.sum(1)).square().mean(), (out[:, 1] - x.amax(1)).square().mean()]
    slopes = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    flat = [torch.cat([s.flatten() for s in each]) for each in slopes]
    dot = flat[0] @ flat[1]
    if dot < 0:
        flat[0] = flat[0] - dot / flat[1].square().sum() * flat[1]
    both, at = flat[0] + flat[1], 0
    for p in parameters:
        p.grad = both[at : at + p.numel()].view_as(p).clone()
        at += p.numel()
    optimizer.step()
    print("losses", losses[0].item().hex(), losses[1].item().hex())
print("steps", 50)
