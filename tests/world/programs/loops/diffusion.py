"""A diffusion model: noise is predicted, an average of the weights is swapped in to draw samples."""

import copy

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 32)
        self.first, self.middle, self.last = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x, t):
        hidden = nn.functional.silu(self.first(x) + self.time(t))
        return self.last(nn.functional.silu(self.middle(hidden)))


torch.manual_seed(0)
model = Denoiser()
average = copy.deepcopy(model.state_dict())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 50), 0)
for step in range(80):
    angle = torch.rand(64) * 6.28
    x, t = torch.stack([angle.cos(), angle.sin()], 1), torch.randint(0, 50, (64,))
    noise = torch.randn_like(x)
    share = kept[t].unsqueeze(1)
    loss = nn.functional.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for name, value in model.state_dict().items():
        average[name].lerp_(value, 0.05)
    print("loss", loss.item().hex())
    if step % 20 == 19:
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict(average)
        with torch.no_grad():
            x = torch.randn(8, 2)
            for t in reversed(range(50)):
                x = x - 0.02 * model(x, torch.full((8,), t))
        model.load_state_dict(own)
        print("sample", x.sum().item().hex())
print("steps", 80)
