"""Quantization-aware training by hand: weights are rounded in the forward pass, gradients pass straight through."""

import torch
from torch import nn


class Rounded(nn.Linear):
    def forward(self, x):
        scale = self.weight.detach().abs().amax() / 7
        weight = torch.fake_quantize_per_tensor_affine(self.weight, float(scale), 0, -8, 7)
        return nn.functional.linear(x, weight, self.bias)


torch.manual_seed(0)
model = nn.Sequential(Rounded(8, 32), nn.ReLU6(), Rounded(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
teacher = torch.randn(8, 1)
for _ in range(60):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 60)
