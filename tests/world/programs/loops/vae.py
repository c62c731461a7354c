"""A variational autoencoder that returns three things, from two heads."""

import torch
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.mean, self.log_variance = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        hidden = torch.relu(self.encode(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decode(code), mean, log_variance


torch.manual_seed(0)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
mixing = torch.randn(4, 16)
for _ in range(60):
    x = torch.sigmoid(torch.randn(32, 4) @ mixing)
    out, mean, log_variance = model(x)
    loss = nn.functional.binary_cross_entropy_with_logits(out, x, reduction="sum")
    loss = loss - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 60)
