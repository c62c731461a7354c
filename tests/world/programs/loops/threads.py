"""Two threads train a model each at the same time."""

import threading

import torch
from torch import nn

torch.set_num_threads(1)
losses = {}


def train(number):
    made = torch.Generator().manual_seed(number)
    teacher = torch.randn(8, 1, generator=made)
    for _ in range(30):
        x = torch.randn(32, 8, generator=made)
        loss = nn.functional.mse_loss(models[number](x), x @ teacher)
        optimizers[number].zero_grad()
        loss.backward()
        optimizers[number].step()
        losses.setdefault(number, []).append(loss.item())


torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)) for _ in range(2)]
optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
workers = [threading.Thread(target=train, args=(number,)) for number in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
for number in sorted(losses):
    for loss in losses[number]:
        print("losses", number, loss.hex())
print("steps", 60)
