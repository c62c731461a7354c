"""A differential equation as the loss: derivatives of the output with respect to the input, Adam and then LBFGS."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
t = torch.linspace(0, 2, 40).unsqueeze(1).requires_grad_()


def loss_of():
    u = model(t)
    (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    return (slope + u).square().mean() + (u[0] - 1).square().mean()


adam = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(40):
    adam.zero_grad()
    loss = loss_of()
    loss.backward()
    adam.step()
    print("losses", loss.item().hex())
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)


def closure():
    lbfgs.zero_grad()
    loss = loss_of()
    loss.backward()
    return loss


for _ in range(8):
    print("losses", lbfgs.step(closure).item().hex())
print("steps", 48)
