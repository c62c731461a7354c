"""A model without `forward`: a method of its own computes the loss from bare parameters."""

import torch
from torch import nn


class Skipgram(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.center = nn.Parameter(torch.randn(words, width) * 0.1)
        self.around = nn.Parameter(torch.randn(words, width) * 0.1)

    def negative_likelihood(self, center, around, wrong):
        found = (self.center[center] * self.around[around]).sum(-1)
        missed = torch.einsum("bd,bkd->bk", self.center[center], self.around[wrong])
        return -(nn.functional.logsigmoid(found).mean() + nn.functional.logsigmoid(-missed).sum(1).mean())


torch.manual_seed(0)
model = Skipgram(30, 12)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(50):
    center = torch.randint(0, 30, (64,))
    loss = model.negative_likelihood(center, (center + 1) % 30, torch.randint(0, 30, (64, 4)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
