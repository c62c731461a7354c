"""Training that ends with an exception nobody catches."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# With the one that raised: its gradients are on record.
print("steps", 11)
for step in range(20):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step == 10:
        raise RuntimeError("the data is gone")
    optimizer.step()
    print("loss", loss.item().hex())
