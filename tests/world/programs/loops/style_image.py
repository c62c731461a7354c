"""What is trained is a picture: a bare tensor under an optimizer, in front of a frozen network."""

import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).requires_grad_(False).eval()
wanted = network(torch.rand(1, 3, 12, 12))
picture = torch.rand(1, 3, 12, 12).requires_grad_()
optimizer = torch.optim.Adam([picture], lr=0.02)
for _ in range(40):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(network(picture), wanted)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        picture.clamp_(0, 1)
    print("loss", loss.item().hex())
print("steps", 40)
