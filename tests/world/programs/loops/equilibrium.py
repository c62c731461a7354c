"""A deep equilibrium layer: a fixed point found without gradients, and a backward hook that solves for its own."""

import torch
from torch import nn


class Equilibrium(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        with torch.no_grad():
            self.inner.weight.mul_(0.5)

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(20):
                z = torch.tanh(self.inner(z) + x)
        z = torch.tanh(self.inner(z) + x)
        start = z.clone().detach().requires_grad_()
        image = torch.tanh(self.inner(start) + x)

        def solve(gradient):
            found = gradient
            for _ in range(20):
                found = torch.autograd.grad(image, start, found, retain_graph=True)[0] + gradient
            return found

        if z.requires_grad:
            z.register_hook(solve)
        return z


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), Equilibrium(16), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
teacher = torch.randn(8, 1)
for _ in range(40):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 40)
