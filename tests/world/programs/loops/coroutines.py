"""Training inside a coroutine, with batches from another one."""

import asyncio

import torch
from torch import nn


async def batches(queue):
    for _ in range(40):
        await queue.put(torch.randn(32, 8))
    await queue.put(None)


async def train(queue):
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while (x := await queue.get()) is not None:
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
        await asyncio.sleep(0)


async def main():
    torch.manual_seed(0)
    queue = asyncio.Queue(2)
    await asyncio.gather(batches(queue), train(queue))
    print("steps", 40)


asyncio.run(main())
