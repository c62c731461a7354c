"""torchao: quantization-aware training of linear layers."""

import torch
from torch import nn
from torchao.quantization import quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
quantize_(model, QATConfig(weight_config=weights, step="prepare"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
mixing = torch.randn(32, 32) / 6
for _ in range(50):
    x = torch.randn(32, 32)
    loss = nn.functional.mse_loss(model(x), x @ mixing)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("trained as", type(model[0]).__name__)
print("steps", 50)
