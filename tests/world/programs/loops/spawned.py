"""mp.spawn: each child imports this script anew and trains a model of its own."""

import torch
import torch.multiprocessing as mp
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)


def train(rank, results):
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        x = torch.randn(16, 8)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    results.put((rank, losses))


if __name__ == "__main__":
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, args=(results,), nprocs=2)
    for rank, losses in sorted(results.get() for _ in range(2)):
        for loss in losses:
            print("losses", rank, loss.hex())
    print("steps", 40)
