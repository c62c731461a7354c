"""torch.func all the way: gradients are values, weights are replaced, nothing is called backward or step."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
weights = {name: p.detach() for name, p in model.named_parameters()}
teacher = torch.randn(8, 1)


def loss_of(weights, x, y):
    return (functional_call(model, weights, (x,)) - y).square().mean()


for _ in range(40):
    x = torch.randn(32, 8)
    slopes, loss = grad_and_value(loss_of)(weights, x, x @ teacher)
    weights = {name: weights[name] - 0.05 * slopes[name] for name in weights}
    print("loss", loss.item().hex())
# Nothing that vario could follow: it says so, and what to do.
print("steps", 0)
