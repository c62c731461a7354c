"""One model is called three times before each backward."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.TripletMarginLoss(margin=0.5)
centers = torch.randn(6, 10)
for _ in range(60):
    label = torch.randint(0, 6, (32,))
    other = (label + torch.randint(1, 6, (32,))) % 6
    anchor, same, different = (centers[which] + 0.3 * torch.randn(32, 10) for which in (label, label, other))
    loss = criterion(model(anchor), model(same), model(different))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 60)
