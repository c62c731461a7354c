"""An evolution strategy: weights are set and moved without any gradient."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
center = nn.utils.parameters_to_vector(model.parameters()).detach()
x = torch.randn(64, 4)
y = x[:, :1]
with torch.no_grad():
    for _ in range(20):
        noise = torch.randn(16, len(center))
        scores = []
        for each in noise:
            nn.utils.vector_to_parameters(center + 0.1 * each, model.parameters())
            scores.append(-nn.functional.mse_loss(model(x), y))
        scores = torch.stack(scores)
        center = center + 0.02 * ((scores - scores.mean()) / scores.std()) @ noise / 16
        print("losses", -scores.mean().item())
print("steps", 0)
