"""Stochastic weight averaging from torch: averages, renewed batch norm, and an evaluation with swapped weights."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x[:, :1] * x[:, 1:2]
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
for epoch in range(10):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
    if epoch >= 5:
        averaged.update_parameters(model)
        schedule.step()
update_bn(loader, averaged)
averaged.eval()
print("validation", nn.functional.mse_loss(averaged(x), y).item().hex())
print("steps", 50)
