"""Contrastive learning with two encoders and a temperature that is a parameter of no module."""

import torch
from torch import nn

torch.manual_seed(0)
pictures = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
words = nn.Sequential(nn.Embedding(40, 16), nn.Flatten(), nn.Linear(64, 8))
temperature = nn.Parameter(torch.tensor(2.6))
optimizer = torch.optim.AdamW([*pictures.parameters(), *words.parameters(), temperature], lr=1e-3)
scenes = torch.randn(40, 12)
for _ in range(60):
    tokens = torch.randint(0, 40, (32, 4))
    left = nn.functional.normalize(pictures(scenes[tokens].mean(1) + 0.1 * torch.randn(32, 12)), dim=1)
    right = nn.functional.normalize(words(tokens), dim=1)
    logits = left @ right.T * temperature.exp()
    label = torch.arange(32)
    loss = (nn.functional.cross_entropy(logits, label) + nn.functional.cross_entropy(logits.T, label)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        temperature.clamp_(0, 4.6)
    print("loss", loss.item().hex())
print("steps", 60)
