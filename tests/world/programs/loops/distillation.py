"""A frozen teacher in evaluation mode and a student."""

import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 4)).eval()
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
for _ in range(60):
    x = torch.randn(32, 8)
    with torch.inference_mode():
        wanted = (teacher(x) / 2).softmax(1)
    loss = nn.functional.kl_div((student(x) / 2).log_softmax(1), wanted.clone(), reduction="batchmean") * 4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 60)
