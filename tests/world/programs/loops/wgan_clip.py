"""The first WGAN: RMSprop, and the critic's weights are clipped after each of its updates."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
for _ in range(60):
    real = torch.randn(32, 2) + torch.tensor([2.0, -1.0])
    optimizer_c.zero_grad()
    loss = critic(generator(torch.randn(32, 4)).detach()).mean() - critic(real).mean()
    loss.backward()
    optimizer_c.step()
    for parameter in critic.parameters():
        parameter.data.clamp_(-0.1, 0.1)
    optimizer_g.zero_grad()
    loss_g = -critic(generator(torch.randn(32, 4))).mean()
    loss_g.backward()
    optimizer_g.step()
    print("losses", loss.item().hex(), loss_g.item().hex())
print("steps", 60)
