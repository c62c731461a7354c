"""A GAN as in the DCGAN tutorial: each model zeroes its own gradients, the generator's backward runs through both."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(8, 48), nn.ReLU(), nn.Unflatten(1, (3, 4, 4)), nn.ConvTranspose2d(3, 1, 4, 2, 1), nn.Tanh()
)
discriminator = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
ones, zeros = torch.ones(16), torch.zeros(16)
for _ in range(60):
    real = torch.rand(16, 1, 8, 8) * 2 - 1
    discriminator.zero_grad()
    loss_real = criterion(discriminator(real).view(-1), ones)
    loss_real.backward()
    fake = generator(torch.randn(16, 8))
    loss_fake = criterion(discriminator(fake.detach()).view(-1), zeros)
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    loss = criterion(discriminator(fake).view(-1), ones)
    loss.backward()
    optimizer_g.step()
    print("losses", (loss_real + loss_fake).item().hex(), loss.item().hex())
print("steps", 60)
