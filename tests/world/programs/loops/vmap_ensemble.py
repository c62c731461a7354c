"""An ensemble under vmap: stacked weights, one optimizer over them."""

import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(5)]
weights, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
optimizer = torch.optim.SGD(weights.values(), lr=0.05)
teacher = torch.randn(8, 1)


def one(weights, buffers, x):
    return functional_call(base, (weights, buffers), (x,))


for _ in range(40):
    x = torch.randn(32, 8)
    out = vmap(one, in_dims=(0, 0, None))(weights, buffers, x)
    loss = (out - x @ teacher).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 40)
