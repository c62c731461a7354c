"""Complex weights and complex activations."""

import torch
from torch import nn


class Spectral(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width // 2 + 1, dtype=torch.cfloat) * 0.5)
        self.mix = nn.Linear(width // 2 + 1, width // 2 + 1, dtype=torch.cfloat)

    def forward(self, x):
        return torch.fft.irfft(self.mix(torch.fft.rfft(x) * self.weight), n=x.shape[-1])


torch.manual_seed(0)
model = nn.Sequential(Spectral(16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(50):
    x = torch.randn(32, 16)
    loss = (model(x) - x[:, :4]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
