"""Batches that make the forward or the backward pass raise are caught, and the loop goes on with the next one."""

import torch
from torch import nn


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        out = torch.tanh(self.first(x))
        if x.shape[0] == 7:
            raise ValueError("seven rows")
        return self.last(out)


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory, say")


torch.manual_seed(0)
model = Picky()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
steps = 0
for number in range(60):
    optimizer.zero_grad()
    x = torch.randn(7 if number % 9 == 4 else 16, 8)
    try:
        out = model(x)
        if number % 11 == 6:
            out = Refuses.apply(out)
        loss = (out - x.mean(1, keepdim=True)).square().mean()
        loss.backward()
    except (ValueError, RuntimeError) as error:
        print("caught", error)
        continue
    optimizer.step()
    steps += 1
    print("loss", loss.item().hex())
print("steps", steps)
