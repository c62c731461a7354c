"""Two optimizers over halves of one model, used in turns: even batches one, odd batches the other."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizers = [torch.optim.Adam(model[0].parameters(), lr=1e-3), torch.optim.Adam(model[2].parameters(), lr=1e-3)]
teacher = torch.randn(8, 1)
for step in range(60):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    model.zero_grad()
    loss.backward()
    optimizers[step % 2].step()
    print("losses", loss.item().hex())
print("steps", 30)
