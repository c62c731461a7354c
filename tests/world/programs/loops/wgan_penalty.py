"""WGAN-GP: five updates of the critic for each of the generator, with a penalty that needs double backward."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))


def penalty(real, fake):
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return 10 * (slope.norm(dim=1) - 1).square().mean()


updates = 0
for _ in range(12):
    for _ in range(5):
        real = torch.randn(32, 2) + torch.tensor([2.0, -1.0])
        fake = generator(torch.randn(32, 4)).detach()
        optimizer_c.zero_grad()
        loss = critic(fake).mean() - critic(real).mean() + penalty(real, fake)
        loss.backward()
        optimizer_c.step()
        updates += 1
        print("losses", loss.item().hex())
    optimizer_g.zero_grad()
    loss = -critic(generator(torch.randn(32, 4))).mean()
    loss.backward()
    optimizer_g.step()
    print("losses", loss.item().hex())
# The generator shares the step of the critic's next update; after the last there is none.
print("steps", updates + 1)
