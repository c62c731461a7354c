"""A learning-rate finder: the rate grows exponentially for some steps, then model and optimizer are put back."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
teacher = torch.randn(8, 1)


def train(steps, schedule=None):
    for _ in range(steps):
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        print("loss", loss.item().hex())


kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
train(40, torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=10 ** (4 / 40)))
model.load_state_dict(kept[0])
optimizer.load_state_dict(kept[1])
for group in optimizer.param_groups:
    group["lr"] = 1e-3
train(40)
print("steps", 80)
