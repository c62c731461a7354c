"""Weight norm, spectral norm and an orthogonal matrix, all by torch's parametrizations."""

import torch
from torch import nn
from torch.nn.utils import parametrizations

torch.manual_seed(0)
model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(8, 32)),
    nn.LeakyReLU(0.1),
    parametrizations.spectral_norm(nn.Linear(32, 32)),
    nn.LeakyReLU(0.1),
    parametrizations.orthogonal(nn.Linear(32, 32, bias=False)),
    nn.Linear(32, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
teacher = torch.randn(8, 1)
for _ in range(50):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
